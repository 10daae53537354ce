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

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/prompt"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// holder is the client that is attached to a session.
type holder struct {
	s        *session
	conn     *websocket.Conn
	quick    *prompt.Conn // sends what is short without waiting; nil where that can't be done
	times    times
	replay   []byte // begins with a replay's header
	replayAt int64
	missed   bool // output that was asked for is not retained any more
	flow     bool // both sides tell what has arrived
	name     string
	back     bool // it lost its connection, and wants to go on if nobody has held the session since

	// The session's lock guards these.
	toldTaken int64 // of the input taken, how much the client was told of
	progress  int64 // by which it is seen that something goes on
	idle      int   // ticks without, while the process waited
	flood     bool  // the last piece of output was a large one
	sentAt    time.Time
	alarm     *time.Timer // wakes the sender when no more has come within the pause
	resting   bool        // the sender waits for something to send
	telling   bool        // the teller runs
	due       bool        // the client is to hear of the input taken
	teller    *time.Timer

	piece     [4 << 10]byte // of input; the receiver's
	stalled   atomic.Bool
	writing   chan struct{} // holds one entry while a message is written
	pongs     chan string
	takenOver sync.Once
	over      chan struct{} // closed when the connection is of no use any more
	drop      func()        // closes over and the connection
	done      chan struct{} // closed when everything of this holder has ended
}

func newHolder(s *session, conn *websocket.Conn, flow bool) *holder {
	h := &holder{s: s, flow: flow, conn: conn, times: s.srv.times, over: make(chan struct{}), done: make(chan struct{}), writing: make(chan struct{}, 1), pongs: make(chan string, 1)}
	h.replay = proto.AppendReplayHeader(nil, 0)
	h.alarm = time.AfterFunc(time.Hour, s.wake)
	h.alarm.Stop()
	h.teller = time.AfterFunc(time.Hour, func() { s.tell(h) })
	h.teller.Stop()
	h.drop = sync.OnceFunc(func() {
		close(h.over)
		_ = conn.NetConn().Close()
	})
	return h
}

// hold serves the client until it leaves, is evicted or is found dead.
func (h *holder) hold() {
	defer close(h.done)
	h.quick = prompt.New(h.conn.NetConn(), false)
	var wg sync.WaitGroup
	wg.Go(h.beat)
	wg.Go(func() {
		h.broke(h.send())
	})
	left := h.receive()
	h.drop()
	defer h.alarm.Stop()
	defer h.teller.Stop()
	// Also ends the sender, which waits for output for as long as it holds the session.
	h.s.release(h, !left && !h.stalled.Load())
	wg.Wait()
	h.writing <- struct{}{} // when what was left to somebody has ended too
}

// broke drops a connection on which could not be written.
func (h *holder) broke(err error) {
	if err == nil {
		return
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		h.stalled.Store(true)
	}
	h.drop()
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
	hello, failure := h.s.hello(h)
	if failure != nil {
		h.s.release(h, false)
		c := proto.Control{Type: proto.TypeError, Error: failure.Error(), Code: proto.CodeStartFailed}
		if err := h.message(websocket.TextMessage, c.Line()); err != nil {
			return err
		}
		h.bye(websocket.CloseInternalServerErr, proto.CodeStartFailed, h.times.silence)
		return nil
	}
	if err := h.message(websocket.TextMessage, hello.Line()); err != nil {
		return err
	}
	buf := make([]byte, 1+proto.MaxChunk)
	for {
		kind, p, done := h.s.next(h, buf)
		if done {
			break
		}
		if err := h.message(kind, p); err != nil {
			return err
		}
		if kind == websocket.BinaryMessage {
			h.s.hasSent(h, len(p)-1)
		}
	}
	code, mine := h.s.exit(h)
	if !mine {
		return nil
	}
	if h.s.srv.halted.Load() {
		h.drop()
		return nil
	}
	// It has been sent everything: whoever comes next, maybe itself, need not evict it.
	h.s.release(h, false)
	if err := h.message(websocket.TextMessage, proto.Control{Type: proto.TypeExit, ExitCode: &code}.Line()); err != nil {
		return err
	}
	h.bye(websocket.CloseNormalClosure, proto.ReasonExited, h.times.silence)
	return nil
}

// message writes one message. A client that takes nothing for so long is dead.
func (h *holder) message(kind int, p []byte) error {
	h.writing <- struct{}{}
	defer func() { <-h.writing }()
	if err := h.conn.SetWriteDeadline(time.Now().Add(h.times.stall)); err != nil {
		return err
	}
	return h.conn.WriteMessage(kind, p)
}

// control writes a control message, other than the last. It must have as long as
// any: one that times out takes the connection with it.
func (h *holder) control(kind int, data []byte) {
	h.writing <- struct{}{}
	defer func() { <-h.writing }()
	// The sender or the receiver sees what this fails with.
	_ = h.conn.WriteControl(kind, data, time.Now().Add(h.times.stall))
}

// bye says why the connection ends and leaves it to the client to close it: what
// was sent before may still be on the way. patience bounds that.
func (h *holder) bye(code int, reason string, patience time.Duration) {
	h.closing(code, reason, min(patience, h.times.stall))
	t := time.AfterFunc(patience, h.drop)
	go func() { <-h.over; t.Stop() }()
}

// closing sends the last message, unless that would take too long: a client that can't be told will see the connection end.
func (h *holder) closing(code int, reason string, patience time.Duration) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case h.writing <- struct{}{}:
		defer func() { <-h.writing }()
	case <-h.over:
		return
	case <-late.C:
		return
	}
	_ = h.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(patience))
}

// evict makes room for another client. It does not wait.
func (h *holder) evict() {
	h.takenOver.Do(func() {
		go func() {
			h.bye(proto.CloseTakenOver, proto.ReasonTakenOver, h.times.farewell)
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

// beat asks for a sign of life now and then, and gives one when asked.
func (h *holder) beat() {
	ping, tick := time.NewTicker(h.times.ping), time.NewTicker(h.times.tick)
	defer ping.Stop()
	defer tick.Stop()
	for {
		select {
		case <-h.over:
			return
		case <-tick.C:
			if h.s.stuck(h) {
				h.stalled.Store(true)
				h.drop()
			}
		case <-ping.C:
			h.control(websocket.PingMessage, nil)
		case data := <-h.pongs:
			h.control(websocket.PongMessage, []byte(data))
		}
	}
}

// receive takes the client's messages. left: it has said good-bye.
func (h *holder) receive() (left bool) {
	patience := proto.Patience{Conn: h.conn, Silence: h.times.silence}
	h.conn.SetCloseHandler(func(code int, _ string) error {
		h.closing(code, "", h.times.farewell)
		return nil
	})
	h.conn.SetPongHandler(func(string) error { return patience.Extend() })
	h.conn.SetPingHandler(func(data string) error {
		select {
		case h.pongs <- data: // not from here: a full connection must not keep this loop from reading
		default:
		}
		return patience.Extend()
	})
	for {
		if patience.Extend() != nil {
			return false
		}
		kind, r, err := h.conn.NextReader()
		if err != nil {
			var bye *websocket.CloseError
			return errors.As(err, &bye) && bye.Code != websocket.CloseAbnormalClosure && bye.Code != proto.CloseComesBack
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
	for {
		n, err := r.Read(h.piece[:])
		if n > 0 && !h.s.write(h, h.piece[:n]) {
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
	case proto.TypeAck:
		h.s.hasGot(h, c.Offset)
	case proto.TypePing:
		return h.message(websocket.TextMessage, proto.Control{Type: proto.TypePong}.Line())
	default:
		no := proto.Control{Type: proto.TypeError, Error: fmt.Sprintf("unknown frame type %q", c.Type), Code: proto.CodeBadFrame}
		return h.message(websocket.TextMessage, no.Line())
	}
	return nil
}

// Plain implements prompt.Wrapper: the bytes stay as they are.
func (c steady) Plain() net.Conn { return c.Conn }

// steady is a connection whose write deadline is one for progress: it begins
// again with every piece that has been taken. Progress that had to be waited for
// also is a sign of life, from a client that is too busy to answer pings.
type steady struct {
	net.Conn
	times times
}

const (
	steadyPiece = 64 << 10
	// waited tells a write that the client had to make room for from one into free buffers.
	waited = 5 * time.Millisecond
)

func (c steady) Write(p []byte) (int, error) {
	for n := 0; ; {
		begun := time.Now()
		m, err := c.Conn.Write(p[n:min(n+steadyPiece, len(p))])
		n += m
		if now := time.Now(); err == nil && now.Sub(begun) > waited {
			err = c.SetReadDeadline(now.Add(c.times.silence))
		}
		if err != nil || n == len(p) {
			return n, err
		}
		if err := c.SetWriteDeadline(time.Now().Add(c.times.stall)); err != nil {
			return n, err
		}
	}
}
