package pty

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/prompt"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// link is one connection to a session's websocket.
type link struct {
	conn  *websocket.Conn
	quick *prompt.Conn // sends what is short without waiting; nil where that can't be done
	times *clientTimes
	born  time.Time
	done  chan struct{} // closed with the connection
	drop  func()
	pongs chan string

	leaving atomic.Bool // whoever reads waits for the end only
	deaf    bool        // output is not taken any more; the pump's
	flow    bool        // the server wants to hear what has arrived; set with its greeting
	sent    int64       // offset up to where this connection was sent input; the session's lock guards it
	told    int64       // offset of output up to where the server was told; the pump's
	acks    chan int64  // the newest offset to tell

	patience proto.Patience // the pump's

	beating sync.WaitGroup
	writing chan struct{} // holds one entry while a message is written
}

func newLink(conn *websocket.Conn, times *clientTimes) *link {
	l := &link{conn: conn, times: times, born: time.Now(), done: make(chan struct{}), pongs: make(chan string, 1), acks: make(chan int64, 1), writing: make(chan struct{}, 1)}
	l.drop = sync.OnceFunc(func() {
		close(l.done)
		_ = conn.NetConn().Close()
	})
	l.patience = proto.Patience{Conn: conn, Silence: times.silence}
	l.quick = prompt.New(conn.NetConn(), true)
	conn.SetCloseHandler(func(code int, _ string) error {
		// The answer, which must not come into the middle of a message.
		_ = l.goodbye(code)
		return nil
	})
	conn.SetPongHandler(func(string) error { return l.patience.Extend() })
	conn.SetPingHandler(func(data string) error {
		select {
		case l.pongs <- data: // not from here: a full connection must not keep the pump from reading
		default:
		}
		return l.patience.Extend()
	})
	l.beating.Go(l.beat)
	return l
}

// farewell bounds the writing of what may as well get lost.
const farewell = 200 * time.Millisecond

// beat asks for a sign of life now and then, and gives one when asked.
func (l *link) beat() {
	tick := time.NewTicker(l.times.ping)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
			l.control(websocket.PingMessage, "")
		case data := <-l.pongs:
			l.control(websocket.PongMessage, data)
		case offset := <-l.acks:
			// Always finds a way: a server that is told does not stop reading.
			if l.write(context.Background(), websocket.TextMessage, proto.Control{Type: proto.TypeAck, Offset: offset}.Encode()) != nil {
				return
			}
		}
	}
}

// arrived tells the server now and then up to where output has arrived. Only the pump calls it.
func (l *link) arrived(offset int64) {
	if l.flow && offset-l.told >= proto.AckEvery {
		l.tell(offset)
	}
}

// tell has the server told; only the newest offset counts.
func (l *link) tell(offset int64) {
	l.told = offset
	select {
	case <-l.acks:
	default:
	}
	l.acks <- offset
}

// control writes a control message behind the message that is under way: a server that gets no answer to a ping, as somebody
// was just typing, would end the connection. It has no deadline: one that timed out would take the connection with it, and with
// that input that the server has not read because the process does not.
func (l *link) control(kind int, data string) {
	select {
	case l.writing <- struct{}{}:
		// The pump sees what this fails with.
		_ = l.conn.WriteControl(kind, []byte(data), time.Time{})
		<-l.writing
	case <-l.done:
	}
}

// patience is how long the server has to answer a good-bye.
const patience = time.Second

// leave says good-bye and lets the pump read until the server has answered: by
// then it has taken all input that was sent before. A server that does not is left without.
func (l *link) leave(code int) {
	l.leaving.Store(true)
	if l.down() || l.goodbye(code) != nil {
		l.drop()
		return
	}
	t := time.AfterFunc(patience, l.drop)
	go func() { <-l.done; t.Stop() }()
}

// goodbye tells the server that the connection ends.
func (l *link) goodbye(code int) error {
	t := time.NewTimer(farewell)
	defer t.Stop()
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	case <-l.done:
		return errLinkDown
	case <-t.C:
		return os.ErrDeadlineExceeded
	}
	return l.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Now().Add(farewell))
}

// hangUp says good-bye and drops the connection.
func (l *link) hangUp() {
	if !l.down() {
		_ = l.goodbye(websocket.CloseNormalClosure)
	}
	l.drop()
}

// down tells whether the connection has been dropped here.
func (l *link) down() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// end drops the connection and waits until nothing is done with it any more.
func (l *link) end() {
	l.drop()
	l.beating.Wait()
	l.writing <- struct{}{} // also what try has left to somebody
	<-l.writing
}

// claim is for whoever wants to write and does not wait; with true it has to be given back.
func (l *link) claim() bool { return !l.down() && l.quick.Claim(l.writing) }

// try sends input without waiting, and ends the claim. The pump sees a connection that is dropped.
func (l *link) try(p []byte) error {
	return l.quick.SendClaimed(l.writing, proto.Stdin, p, 0, func(error) { l.drop() })
}

// write sends one message. When ctx ends in the middle of it the connection is of no use any more.
func (l *link) write(ctx context.Context, kind int, p []byte) error {
	select {
	case l.writing <- struct{}{}:
	case <-l.done:
		return errLinkDown
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-l.writing }()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, l.drop)
	defer stop()
	return l.conn.WriteMessage(kind, p)
}
