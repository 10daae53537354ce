package pty

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// maxFruitless is how many connections in a row may end without a byte before the
// session is given up. A server that has greeted as one of ours gets as many more as there are waits between them.
const maxFruitless = 3

// begin connects and starts the pump. moving is held, or nobody knows the session yet.
func (s *Session) begin(ctx context.Context, op string, o dialOptions) error {
	// Close and Abandon end it too.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopped := make(chan struct{})
	s.mu.Lock()
	s.stop, s.pumping = cancel, stopped
	o.first = s.mode == ""
	over := s.over()
	s.mu.Unlock()
	var l *link
	var err error
	if !over {
		l, err = s.establish(ctx, op, o)
	}
	run, stop := context.WithCancel(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.over() {
		err = s.ended(op)
	}
	if err != nil {
		if l != nil {
			l.drop()
		}
		stop()
		close(stopped)
		if errors.Is(err, errExit) {
			s.detached = false
			return nil
		}
		return err
	}
	s.stop, s.link, s.detached = stop, l, false
	s.changed.fire()
	l.beating.Go(func() { s.push(l) })
	go func() {
		defer close(stopped)
		defer stop()
		s.pump(run, l)
	}()
	return nil
}

// abort drops a session that could not be opened, and ends what it may have left on the server.
func (s *Session) abort() {
	ctx, cancel := context.WithTimeout(context.Background(), s.c.t().diagnose)
	defer cancel()
	// The error of the opening is what the caller has to know.
	_ = s.Close(ctx)
}

// pump hands on what the server sends, over one connection after the other,
// until the session ends or is detached. It alone reads.
func (s *Session) pump(ctx context.Context, l *link) {
	fruitless := -1 // the first connection does not count
	for before := s.arrived(); ; {
		err := s.receive(l, false)
		if errors.Is(err, errExit) {
			l.hangUp()
		}
		lived := time.Since(l.born)
		l.end()

		s.mu.Lock()
		s.link = nil
		s.changed.fire()
		if s.received > before || lived >= l.times.settled {
			fruitless = 0
		} else {
			fruitless++
		}
		over := s.over() || s.detached
		before = s.received
		s.mu.Unlock()
		if over || ctx.Err() != nil {
			return
		}
		err = s.lost(ctx, err, fruitless)
		if err == nil && fruitless > 0 && len(l.times.retry) > 0 {
			sleep(ctx, l.times.retry[min(fruitless, len(l.times.retry))-1])
		}
		if err == nil {
			l, err = s.establish(ctx, "pty reattach", dialOptions{takeover: true, back: true})
		}
		if err != nil {
			s.end(ctx, err)
			return
		}
		if !s.use(ctx, l) {
			l.end()
			return
		}
	}
}

// use makes a connection the one in use, unless the pump has been told to stop.
func (s *Session) use(ctx context.Context, l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil || s.over() || s.detached {
		return false
	}
	s.link = l
	s.changed.fire()
	// Input that the last connection has not brought there.
	l.beating.Go(func() { s.push(l) })
	return true
}

// arrived is how far the output has arrived.
func (s *Session) arrived() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received
}

// end notes why the session ended. A pump that was told to stop ends nothing.
func (s *Session) end(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil && !s.over() {
		s.err = err
	}
	s.changed.fire()
}

// lost decides what the end of a connection means: nil is to come back.
func (s *Session) lost(ctx context.Context, err error, fruitless int) error {
	const op = "pty read"
	var bye *websocket.CloseError
	errors.As(err, &bye)
	var bad *protocolError
	limit := maxFruitless
	if s.flows() {
		limit += len(s.c.t().retry)
	}
	switch {
	case bye != nil && bye.Code == proto.CloseTakenOver:
		return s.c.errorf(op, "PTY session %s: %w", s.id, errTakenOver)
	case errors.As(err, &bad):
		return s.c.errorf(op, "PTY session %s: %w", s.id, bad.error)
	case fruitless < limit:
		return nil
	}
	if derr := s.c.gone(ctx); derr != nil {
		return s.c.errorf(op, "PTY session %s: %w", s.id, derr)
	}
	return s.c.errorf(op, "PTY connection closed unexpectedly (%s), %d times in a row without output", closeText(err), fruitless)
}

func closeText(err error) string {
	code := websocket.CloseAbnormalClosure
	var bye *websocket.CloseError
	if errors.As(err, &bye) {
		code = bye.Code
	}
	return fmt.Sprintf("close code %d", code)
}

// establish dials until the server says that the session is attached.
func (s *Session) establish(ctx context.Context, op string, o dialOptions) (*link, error) {
	retry, refused := s.c.t().retry, s.c.t().refused
	for {
		l, err := s.connect(ctx, o)
		if err == nil {
			return l, nil
		}
		wait := refused
		var bad *protocolError
		switch {
		case errors.Is(err, errExit):
			return nil, err
		case errors.Is(err, errNoGreeting):
			kind := core.KindTimeout
			if o.back {
				kind = core.KindPTY // nobody asked for it: to a reader it is the session's end, and not that of a time
			}
			return nil, s.c.named(op, core.Errorf(kind, op, "PTY session %s: %w within %gs", s.id, err, s.c.request().Seconds()))
		case ctx.Err() != nil:
			return nil, s.c.named(op, ctxError(ctx, op))
		case isRefused(err):
			if !o.takeover {
				return nil, s.c.held(op, s.id)
			}
			if len(refused) == 0 {
				return nil, s.keptRefused(ctx, op)
			}
			refused = refused[1:]
		case isStatus(err, 404, proto.CodeNotFound):
			return nil, s.c.notFound(op, s.id)
		case errors.As(err, &bad):
			return nil, s.c.errorf(op, "PTY session %s: %w", s.id, bad.error)
		case len(retry) == 0 || !mayHeal(err):
			return nil, s.c.failed(ctx, op, "Failed to attach to PTY session "+s.id, err)
		default:
			if derr := s.c.gone(ctx); derr != nil {
				return nil, s.c.failed(ctx, op, "PTY session "+s.id, derr)
			}
			wait, retry = retry, retry[1:]
		}
		if !sleep(ctx, wait[0]) {
			return nil, s.c.named(op, ctxError(ctx, op))
		}
	}
}

// keptRefused is the error of a session that can't be taken over. A proxy refuses in the same words when what is behind
// it has died.
func (s *Session) keptRefused(ctx context.Context, op string) error {
	refused := s.c.held(op, s.id)
	if derr := s.c.gone(ctx); derr != nil {
		return s.c.errorf(op, "PTY session %s: takeover kept being refused: %w (%w)", s.id, derr, refused)
	}
	return refused
}

func isRefused(err error) bool {
	var bye *websocket.CloseError
	return isStatus(err, 409, "") || errors.As(err, &bye) && bye.Code == proto.CloseRefused
}

// connect makes one try to attach, from the first byte that has not arrived.
func (s *Session) connect(ctx context.Context, o dialOptions) (*link, error) {
	s.mu.Lock()
	o.since, o.flow, o.holder = s.received, s.c.Flow, s.holder
	s.mu.Unlock()
	if s.c.RestartsEnded && !o.first {
		if err := s.stillRuns(ctx); err != nil {
			return nil, err
		}
	}
	conn, err := s.c.dial(ctx, s.id, o)
	if err != nil {
		return nil, err
	}
	l := newLink(conn, s.c.t())
	short, cancel := context.WithTimeout(ctx, s.c.request())
	defer cancel()
	stop := context.AfterFunc(short, l.drop)
	err = s.receive(l, true)
	if !stop() && err == nil {
		err = context.Cause(short)
	}
	if err == nil {
		return l, nil
	}
	l.end()
	var bad *protocolError
	var bye *websocket.CloseError
	_ = errors.As(err, &bye)
	switch {
	case ctx.Err() == nil && short.Err() != nil && bye == nil && !errors.As(err, &bad):
		err = errNoGreeting
	case errors.As(err, &bye) && bye.Code == proto.CloseTakenOver:
		err = &protocolError{errTakenOver}
	case o.first && !isRefused(err) && !errors.As(err, &bad):
		// The process may have run: what it did must not be done twice.
		err = &protocolError{fmt.Errorf("the connection ended before it was established (%s)", closeText(err))}
	}
	return nil, err
}

// stillRuns asks before coming back to a server that would start the process again.
func (s *Session) stillRuns(ctx context.Context) error {
	info, err := s.c.info(ctx, s.id)
	if err != nil || info.Running {
		return err
	}
	s.mu.Lock()
	missing := info.OutputOffset - s.received
	s.mu.Unlock()
	return &protocolError{fmt.Errorf("the process ended while there was no connection: its exit code is unknown, and the last %d bytes of its output are lost", max(missing, 0))}
}

// protocolError is what ends a session because its server said it, or said something wrong.
type protocolError struct{ error }

func (e *protocolError) Unwrap() error { return e.error }

var errTakenOver = errors.New("the session was taken over by another client")

var errNoGreeting = errors.New("the server accepted the connection, and did not say that the session is attached")

var errExit = errors.New("the process has exited")
