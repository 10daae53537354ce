package pty

import (
	"context"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// link is one connection to a session's websocket.
type link struct {
	conn  *websocket.Conn
	times *clientTimes
	born  time.Time
	done  chan struct{} // closed with the connection
	drop  func()
	pongs chan string

	beating sync.WaitGroup
	writing chan struct{} // holds one entry while a message is written
}

func newLink(conn *websocket.Conn, times *clientTimes) *link {
	l := &link{conn: conn, times: times, born: time.Now(), done: make(chan struct{}), pongs: make(chan string, 1), writing: make(chan struct{}, 1)}
	l.drop = sync.OnceFunc(func() {
		close(l.done)
		_ = conn.NetConn().Close()
	})
	conn.SetPongHandler(func(string) error { return l.alive() })
	conn.SetPingHandler(func(data string) error {
		select {
		case l.pongs <- data: // not from here: a full connection must not keep the pump from reading
		default:
		}
		return l.alive()
	})
	l.beating.Go(l.beat)
	return l
}

// farewell bounds the writing of what may as well get lost.
const farewell = 200 * time.Millisecond

// alive gives the server time for its next message.
func (l *link) alive() error { return l.conn.SetReadDeadline(time.Now().Add(l.times.silence)) }

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
		}
	}
}

// control writes a control message unless another message is under way. It has
// no deadline: one that timed out would take the connection with it, and with that input
// that the server has not read because the process does not.
func (l *link) control(kind int, data string) {
	select {
	case l.writing <- struct{}{}:
		// The pump sees what this fails with.
		_ = l.conn.WriteControl(kind, []byte(data), time.Time{})
		<-l.writing
	default:
	}
}

// leave says good-bye and drops the connection. Idempotent.
func (l *link) leave() {
	if !l.down() {
		_ = l.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(farewell))
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
