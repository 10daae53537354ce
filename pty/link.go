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
	beat  sync.WaitGroup

	writing chan struct{} // holds one entry while a message is written
}

func newLink(conn *websocket.Conn, times *clientTimes) *link {
	l := &link{conn: conn, times: times, born: time.Now(), done: make(chan struct{}), writing: make(chan struct{}, 1)}
	l.drop = sync.OnceFunc(func() {
		close(l.done)
		_ = conn.NetConn().Close()
	})
	conn.SetPongHandler(func(string) error { return l.alive() })
	conn.SetPingHandler(func(data string) error {
		if err := l.alive(); err != nil {
			return err
		}
		// A pong that finds no way is missed by the other side, which then asks again or gives up.
		_ = conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(farewell))
		return nil
	})
	l.beat.Go(l.ping)
	return l
}

// farewell bounds the writing of what may as well get lost.
const farewell = 200 * time.Millisecond

// alive gives the server time for its next message.
func (l *link) alive() error { return l.conn.SetReadDeadline(time.Now().Add(l.times.silence)) }

// ping asks for a sign of life now and then.
func (l *link) ping() {
	tick := time.NewTicker(l.times.ping)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
			_ = l.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(farewell))
		}
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
