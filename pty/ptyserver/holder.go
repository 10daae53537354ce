package ptyserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// holder is the client that is attached to a session.
type holder struct {
	s        *session
	conn     *websocket.Conn
	times    times
	replay   []byte // begins with a replay's header
	replayAt int64
	missed   bool // output that was asked for is not retained any more

	writing   sync.Mutex // held while a data message is written
	takenOver sync.Once
	over      chan struct{} // closed when the connection is of no use any more
	drop      func()        // closes over and the connection
	done      chan struct{} // closed when everything of this holder has ended
}

func newHolder(s *session, conn *websocket.Conn) *holder {
	h := &holder{s: s, conn: conn, times: s.srv.times, over: make(chan struct{}), done: make(chan struct{})}
	h.replay = proto.AppendReplayHeader(nil, 0)
	h.drop = sync.OnceFunc(func() {
		close(h.over)
		_ = conn.NetConn().Close()
	})
	return h
}

// hold serves the client until it leaves, is evicted or is found dead.
func (h *holder) hold() {
	defer close(h.done)
	var wg sync.WaitGroup
	wg.Go(h.beat)
	var stalled atomic.Bool
	wg.Go(func() {
		if err := h.send(); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				stalled.Store(true)
			}
			h.drop()
		}
	})
	left := h.receive()
	h.drop()
	// Also ends the sender, which waits for output for as long as it holds the session.
	h.s.release(h, !left && !stalled.Load())
	wg.Wait()
}

// send writes the replay, then output as it comes, then the exit code. An error is that of the connection.
func (h *holder) send() error {
	if len(h.replay) > proto.ReplayHeader || h.missed {
		p := proto.AppendReplayHeader(h.replay[:0], h.replayAt)[:len(h.replay)]
		if err := h.message(websocket.BinaryMessage, p); err != nil {
			return err
		}
	}
	h.replay = nil
	mode, failure := h.s.begun()
	if failure != nil {
		c := proto.Control{Type: proto.TypeError, Error: failure.Error(), Code: proto.CodeStartFailed}
		if err := h.message(websocket.TextMessage, c.Encode()); err != nil {
			return err
		}
		h.bye(websocket.CloseInternalServerErr, proto.CodeStartFailed)
		return nil
	}
	hello := proto.Control{Type: proto.TypeConnected, SessionID: h.s.id, Mode: mode}
	if err := h.message(websocket.TextMessage, hello.Encode()); err != nil {
		return err
	}
	buf := make([]byte, 1+proto.MaxChunk)
	for {
		p, done := h.s.next(h, buf)
		if done {
			break
		}
		if err := h.message(websocket.BinaryMessage, p); err != nil {
			return err
		}
		h.s.hasSent(h, len(p)-1)
	}
	code, mine := h.s.exit(h)
	if !mine {
		return nil
	}
	if h.s.srv.halted.Load() {
		h.drop()
		return nil
	}
	if err := h.message(websocket.TextMessage, proto.Control{Type: proto.TypeExit, ExitCode: &code}.Encode()); err != nil {
		return err
	}
	h.bye(websocket.CloseNormalClosure, proto.ReasonExited)
	return nil
}

// message writes one message. A client that takes nothing for so long is dead.
func (h *holder) message(kind int, p []byte) error {
	h.writing.Lock()
	defer h.writing.Unlock()
	if err := h.conn.SetWriteDeadline(time.Now().Add(h.times.stall)); err != nil {
		return err
	}
	return h.conn.WriteMessage(kind, p)
}

// bye says why the connection ends and leaves it to the client to close it, so
// that what was sent is not lost with it.
func (h *holder) bye(code int, reason string) {
	now := time.Now()
	// A client that can't be told will see the connection end.
	_ = h.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), now.Add(h.times.farewell))
	time.AfterFunc(h.times.farewell, h.drop)
}

// evict makes room for another client. It does not wait.
func (h *holder) evict() {
	h.takenOver.Do(func() {
		go func() {
			h.bye(proto.CloseTakenOver, proto.ReasonTakenOver)
		}()
	})
}

// finish waits until a session that has ended has told its holder, or a client that does not listen has had its time.
func (h *holder) finish() {
	select {
	case <-h.done:
	case <-time.After(h.times.farewell):
		h.drop()
		<-h.done
	}
}

// beat asks for a sign of life now and then.
func (h *holder) beat() {
	tick := time.NewTicker(h.times.ping)
	defer tick.Stop()
	for {
		select {
		case <-h.over:
			return
		case <-tick.C:
			// One that does not get through is not missed: the client's silence tells.
			_ = h.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(h.times.farewell))
		}
	}
}

// receive takes the client's messages. left: it has said good-bye.
func (h *holder) receive() (left bool) {
	alive := func(string) error { return h.conn.SetReadDeadline(time.Now().Add(h.times.silence)) }
	h.conn.SetPongHandler(alive)
	ping := h.conn.PingHandler()
	h.conn.SetPingHandler(func(data string) error {
		if err := alive(""); err != nil {
			return err
		}
		return ping(data)
	})
	for {
		if alive("") != nil {
			return false
		}
		kind, r, err := h.conn.NextReader()
		if err != nil {
			var bye *websocket.CloseError
			return errors.As(err, &bye) && bye.Code != websocket.CloseAbnormalClosure
		}
		if kind == websocket.BinaryMessage {
			err = h.binary(r)
		} else {
			err = h.text(r)
		}
		if err != nil {
			return false
		}
	}
}

var errEvicted = errors.New("another client holds the session")

// binary takes input for the process.
func (h *holder) binary(r io.Reader) error {
	var channel [1]byte
	if _, err := io.ReadFull(r, channel[:]); err != nil {
		return ignoreEmpty(err)
	}
	if channel[0] != proto.Stdin {
		_, err := io.Copy(io.Discard, r)
		return err
	}
	p := make([]byte, 4<<10)
	for {
		n, err := r.Read(p)
		if n > 0 && !h.s.write(h, p[:n]) {
			return errEvicted
		}
		if err != nil {
			return ignoreEmpty(err)
		}
	}
}

func ignoreEmpty(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// text takes a control message.
func (h *holder) text(r io.Reader) error {
	p, err := io.ReadAll(io.LimitReader(r, proto.MaxControl+1))
	if err != nil {
		return err
	}
	if len(p) > proto.MaxControl {
		return fmt.Errorf("a text message of more than %d bytes", proto.MaxControl)
	}
	var c proto.Control
	if json.Unmarshal(p, &c) != nil {
		return nil // as others do: not worth the connection
	}
	switch c.Type {
	case proto.TypeStdin:
		if c.Data != "" && !h.s.write(h, []byte(c.Data)) {
			return errEvicted
		}
	case proto.TypeResize:
		h.s.resize(h, c.Rows, c.Cols)
	case proto.TypeSignal:
		h.s.signal(h, c.Signal)
	case proto.TypePing:
		return h.message(websocket.TextMessage, proto.Control{Type: proto.TypePong}.Encode())
	default:
		no := proto.Control{Type: proto.TypeError, Error: fmt.Sprintf("unknown frame type %q", c.Type), Code: proto.CodeBadFrame}
		return h.message(websocket.TextMessage, no.Encode())
	}
	return nil
}

// steady is a connection whose write deadline is one for progress: it begins
// again with every piece that has been taken.
type steady struct {
	net.Conn
	stall time.Duration
}

const steadyPiece = 64 << 10

func (c steady) Write(p []byte) (int, error) {
	for n := 0; ; {
		m, err := c.Conn.Write(p[n:min(n+steadyPiece, len(p))])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
		if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return n, err
		}
	}
}
