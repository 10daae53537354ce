package pty

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// maxBuffered is how much unread output of a stream is kept here; then no more
// is taken from the connection, and the process waits. It is little, because after
// an interrupt a user has to see all of it before the prompt.
const maxBuffered = 64 << 10

// Session is a client's side of a terminal session; it implements core.PTYSession.
type Session struct {
	c     *Client
	id    string
	owned bool // made here: its end is the end of the session
	// holder tells the server connections of this session from those of other clients.
	holder string

	// moving is held during Detach, Reattach and Close, which take turns.
	moving chan struct{}
	turn   chan struct{} // held while the bytes of one Write are sent
	typing chan struct{} // held while a command is typed and its output collected

	mu       sync.Mutex
	changed  event // anything below
	out      [2]buffer
	readers  [2]int              // that wait for output, and so have none in hand
	sinks    [2]func([]byte) int // see Divert
	crowded  int                 // writers that wait for room
	received int64               // offset behind the last byte that has arrived
	replay   int64               // where the last replay began, -1 for none
	mode     string
	in       input
	link     *link         // the connection in use, nil while there is none
	stop     func()        // ends the pump
	pumping  chan struct{} // closed when the pump has ended; nil before the first
	detached bool
	closed   bool
	exited   bool
	code     int
	err      error // why the session ended without an exit
}

var (
	_ core.PTYSession = (*Session)(nil)
	_ core.PTYPrompt  = (*Session)(nil)
)

const sendingBroke = "PTY connection lost while sending; what was being sent may not have arrived"

var errLinkDown = errors.New("the connection was lost")

func newSession(c *Client, id string, owned bool) *Session {
	return &Session{c: c, id: id, owned: owned, holder: rand.Text(), replay: -1,
		moving: make(chan struct{}, 1), turn: make(chan struct{}, 1), typing: make(chan struct{}, 1)}
}

// SessionID implements core.PTYSession.
func (s *Session) SessionID() string { return s.id }

// Mode implements core.PTYSession.
func (s *Session) Mode() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mode
}

// ReplayOffset implements core.PTYSession.
func (s *Session) ReplayOffset() (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(s.replay, 0), s.replay >= 0
}

// Closed implements core.PTYSession.
func (s *Session) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.over()
}

// over tells whether the session has ended here. mu is held.
func (s *Session) over() bool { return s.closed || s.exited || s.err != nil }

// Read implements core.PTYSession.
func (s *Session) Read(ctx context.Context) ([]byte, error) {
	_, p, err := s.take(ctx, "pty read", core.Stdout)
	return p, err
}

// ReadStderr implements core.PTYSession.
func (s *Session) ReadStderr(ctx context.Context) ([]byte, error) {
	_, p, err := s.take(ctx, "pty read", core.Stderr)
	return p, err
}

// take gives the next output of one of the streams.
func (s *Session) take(ctx context.Context, op string, of ...core.Stream) (core.Stream, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed {
			return 0, nil, s.ended(op)
		}
		if s.detached {
			return 0, nil, s.c.errorf(op, "PTY session %s is detached; reattach it first", s.id)
		}
		for _, from := range of {
			if p, ok := s.out[from].take(); ok {
				s.changed.fire()
				if p.gap != nil {
					return from, nil, s.c.errorf(op, "%w", p.gap)
				}
				return from, p.data, nil
			}
		}
		switch {
		case s.exited:
			return 0, nil, io.EOF
		case s.err != nil:
			return 0, nil, s.ended(op)
		}
		for _, from := range of {
			s.readers[from]++
		}
		came := s.await(ctx)
		for _, from := range of {
			s.readers[from]--
		}
		if !came {
			return 0, nil, s.c.named(op, ctxError(ctx, op))
		}
	}
}

// Divert implements core.PTYPrompt.
func (s *Session) Divert(of core.Stream, f func(p []byte) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sinks[of] = f
}

// divert gives output to where it is wanted, and tells how much was taken. mu is held.
func (s *Session) divert(of core.Stream, p []byte) int {
	if s.sinks[of] == nil || s.readers[of] == 0 || !s.out[of].empty() || s.over() || s.detached {
		return 0
	}
	return s.sinks[of](p)
}

// await waits for a change; false when ctx ended first. mu is held before and after.
func (s *Session) await(ctx context.Context) bool {
	ch := s.changed.wait()
	s.mu.Unlock()
	defer s.mu.Lock()
	select {
	case <-ch:
		return true
	case <-ctx.Done():
		return false
	}
}

// ended is the error of a session that can't be used any more. mu is held.
func (s *Session) ended(op string) error {
	if s.err != nil {
		return s.c.named(op, s.err)
	}
	if s.exited && !s.closed {
		return s.c.errorf(op, "PTY session %s is closed: its process has exited with code %d", s.id, s.code)
	}
	return s.c.errorf(op, "PTY session %s is closed", s.id)
}

// WaitExit implements core.PTYSession.
func (s *Session) WaitExit(ctx context.Context) (int, error) {
	const op = "pty wait"
	s.mu.Lock()
	defer s.mu.Unlock()
	for came := true; ; came = s.await(ctx) {
		switch {
		case s.exited:
			return s.code, nil
		case s.err != nil:
			return 0, s.ended(op)
		case s.closed:
			return 0, s.c.errorf(op, "PTY session %s was closed before process exit", s.id)
		case !came: // asked last: whoever closes a session may end the contexts of those who wait for it in the same moment
			return 0, s.c.named(op, ctxError(ctx, op))
		}
	}
}

// Resize implements core.PTYSession. After the process's end there is nothing to resize, which is no error.
func (s *Session) Resize(ctx context.Context, rows, cols int) error {
	const op = "pty resize"
	if !proto.ValidSize(rows, cols) {
		return s.c.named(op, core.Errorf(core.KindInvalid, op, "rows and cols must be between 1 and 65535"))
	}
	err := s.send(ctx, op, websocket.TextMessage, proto.Control{Type: proto.TypeResize, Cols: cols, Rows: rows}.Encode())
	if err != nil && s.endedByItself() {
		return nil // a process that has just ended has no use for the size: its end is no fault of who asked
	}
	return err
}

// endedByItself tells whether the process has exited and nobody has closed the session since.
func (s *Session) endedByItself() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exited && !s.closed
}

// Signal implements core.PTYSession.
func (s *Session) Signal(ctx context.Context, name string) error {
	const op = "pty signal"
	if !slices.Contains(proto.Signals, name) {
		return s.c.named(op, core.Errorf(core.KindInvalid, op, "a PTY session supports only the signals %s, not %q", strings.Join(proto.Signals, ", "), name))
	}
	return s.send(ctx, op, websocket.TextMessage, proto.Control{Type: proto.TypeSignal, Signal: name}.Encode())
}

// usable gives the error of a session that takes no messages.
func (s *Session) usable(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unusable(op)
}

// unusable is usable with mu held.
func (s *Session) unusable(op string) error {
	switch {
	case s.over():
		return s.ended(op)
	case s.detached:
		return s.c.errorf(op, "PTY session %s is detached; reattach it first", s.id)
	}
	return nil
}

// send sends one message, when the connection was lost over the next one. A
// message whose sending broke is not sent again: it may have arrived.
func (s *Session) send(ctx context.Context, op string, kind int, p []byte) error {
	for {
		if err := s.usable(op); err != nil {
			return err
		}
		s.mu.Lock()
		l := s.link
		if l == nil || l.down() {
			ok := s.await(ctx)
			s.mu.Unlock()
			if !ok {
				return s.c.named(op, ctxError(ctx, op))
			}
			continue
		}
		s.mu.Unlock()
		switch err := l.write(ctx, kind, p); {
		case err == nil:
			return nil
		case errors.Is(err, errLinkDown):
			continue
		case ctx.Err() != nil:
			return s.c.named(op, ctxError(ctx, op))
		default:
			l.drop()
			if uerr := s.usable(op); uerr != nil {
				return uerr
			}
			return s.c.errorf(op, "%s: %w", sendingBroke, err)
		}
	}
}

// Detach implements core.PTYSession.
func (s *Session) Detach() error {
	_, err := s.detach(context.Background(), "pty detach", func(l *link) { l.leave(websocket.CloseNormalClosure) })
	return err
}

// Yield detaches the session, if it is attached, so that this process can attach to it anew. One that has ended has
// nothing to yield.
func (s *Session) Yield(ctx context.Context) error {
	_, err := s.detach(ctx, "pty attach", func(l *link) { l.leave(websocket.CloseNormalClosure) })
	if err != nil && s.Closed() {
		return nil
	}
	return err
}

// Suspend implements core.PTYSession.
func (s *Session) Suspend() bool {
	was, err := s.detach(context.Background(), "pty suspend", func(l *link) { l.leave(proto.CloseComesBack) })
	return was && err == nil
}

func (s *Session) detach(ctx context.Context, op string, leave func(*link)) (was bool, err error) {
	select {
	case s.moving <- struct{}{}:
		defer func() { <-s.moving }()
	case <-ctx.Done():
		return false, s.c.named(op, ctxError(ctx, op))
	}
	s.mu.Lock()
	if s.over() {
		defer s.mu.Unlock()
		return false, s.ended(op)
	}
	was = !s.detached
	s.detached = true
	s.mu.Unlock()
	s.halt(leave)
	return was, nil
}

// halt ends the pump and with it the connection.
func (s *Session) halt(leave func(*link)) {
	s.mu.Lock()
	l, stop, pumping := s.link, s.stop, s.pumping
	s.mu.Unlock()
	if l != nil {
		leave(l)
	}
	s.mu.Lock()
	s.changed.fire()
	s.mu.Unlock()
	if pumping != nil {
		stop()
		<-pumping
	}
}

// Reattach implements core.PTYSession.
func (s *Session) Reattach(ctx context.Context) error {
	const op = "pty reattach"
	select {
	case s.moving <- struct{}{}:
		defer func() { <-s.moving }()
	case <-ctx.Done():
		return s.c.named(op, ctxError(ctx, op))
	}
	s.mu.Lock()
	was := s.detached
	if s.exited && !s.closed && was {
		// It was just being detached when the exit arrived, with all output before it.
		s.detached, was = false, false
		s.changed.fire()
	} else if s.over() {
		defer s.mu.Unlock()
		return s.ended(op)
	}
	s.mu.Unlock()
	if !was {
		return nil
	}
	err := s.begin(ctx, op, dialOptions{takeover: true})
	if errors.Is(err, errNotFound) {
		// Its owner has ended it: nobody needs to wait for its exit, or to try again.
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.over() {
			s.err = err
		}
		s.changed.fire()
	}
	return err
}

// Close implements core.PTYSession.
func (s *Session) Close(ctx context.Context) error {
	const op = "pty close"
	s.mu.Lock()
	was := s.closed
	s.closed = true
	s.changed.fire()
	l, stop := s.link, s.stop
	s.mu.Unlock()
	if was {
		return nil
	}
	if l != nil {
		l.hangUp()
	}
	if stop != nil {
		stop() // also ends whoever moves
	}
	s.moving <- struct{}{}
	defer func() { <-s.moving }()
	s.halt((*link).hangUp)
	s.mu.Lock()
	s.out = [2]buffer{}
	s.mu.Unlock()
	if !s.owned {
		return nil
	}
	return s.delete(ctx, op)
}

// delete ends the session on the server.
func (s *Session) delete(ctx context.Context, op string) error {
	_, err := s.c.call(ctx, "DELETE", "/pty/"+s.id, nil, nil, nil)
	if err == nil || isStatus(err, 404, "") || s.c.gone(ctx) != nil {
		return nil
	}
	return s.c.failed(ctx, op, "end PTY session "+s.id, err)
}

// Abandon implements core.PTYSession.
func (s *Session) Abandon(reason error) {
	s.mu.Lock()
	if !s.over() {
		s.err = s.c.errorf("", "PTY session %s has ended: %w", s.id, reason)
	}
	s.changed.fire()
	s.mu.Unlock()
	s.halt((*link).hangUp)
}
