package pty

import (
	"context"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/prompt"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// input is what a session's client has written and the process may not have been
// given. Offsets count all input that the session was ever sent. Used only where the
// server tells what has arrived; the session's lock guards it.
type input struct {
	flow  bool
	kept  []byte // from offset base on
	base  int64
	taken int64 // the process has been given what is before
}

// end is the offset behind the last byte written.
func (in *input) end() int64 { return in.base + int64(len(in.kept)) }

// greeted begins with what the server says that it has accepted, and gives the offset from which to send (again).
func (in *input) greeted(c proto.Control, first bool) int64 {
	in.flow, in.taken = c.Flow, c.Taken
	if first || c.Accepted > in.end() || c.Accepted < in.base {
		// Somebody else has been typing: what is kept here has no place any more.
		in.kept, in.base = nil, c.Accepted
	}
	return c.Accepted
}

// hears that the process was given input.
func (in *input) hears(taken int64) {
	in.taken = max(in.taken, taken)
	if done := min(in.taken, in.end()) - in.base; done > 0 {
		in.kept = in.kept[done:]
		in.base += done
		if len(in.kept) == 0 {
			in.kept = nil
		}
	}
}

// Write implements core.PTYSession.
func (s *Session) Write(ctx context.Context, p []byte) error {
	const op = "pty write"
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return s.c.named(op, ctxError(ctx, op))
	}
	if err := s.usable(op); err != nil {
		return err
	}
	for len(p) > 0 {
		n := min(len(p), proto.MaxChunk)
		var err error
		if s.flows() {
			err = s.keep(ctx, op, p[:n])
		} else {
			err = s.send(ctx, op, websocket.BinaryMessage, append([]byte{proto.Stdin}, p[:n]...))
		}
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// TryWrite implements core.PTYPrompt.
func (s *Session) TryWrite(p []byte) (int, error) {
	const op = "pty write"
	if len(p) == 0 || len(p) > prompt.Most {
		return 0, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	default:
		return 0, nil
	}
	s.mu.Lock()
	l := s.link
	s.mu.Unlock()
	if l == nil || !l.claim() {
		return 0, nil
	}
	flow, fits := s.admit(l, p)
	if !fits {
		<-l.writing
		return 0, nil
	}
	if err := l.try(p); err != nil && !flow {
		if uerr := s.usable(op); uerr != nil {
			return 0, uerr
		}
		return 0, s.c.errorf(op, "%s: %w", sendingBroke, err)
	}
	return len(p), nil // what is kept the next connection will send
}

// admit tells whether p can follow what a connection has been sent, and keeps it where input is kept.
func (s *Session) admit(l *link, p []byte) (flow, fits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over() || s.detached:
		return false, false
	case !s.in.flow:
		return false, true
	case max(l.sent, s.in.base) != s.in.end() || s.in.end()+int64(len(p))-s.in.taken > proto.MaxInput:
		return true, false
	}
	s.in.kept = append(s.in.kept, p...)
	l.sent = s.in.end()
	return true, true
}

func (s *Session) flows() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in.flow
}

// keep waits for room, keeps a piece of input until the process was given it, and sends it.
// When there is no connection just now the next one will send it.
func (s *Session) keep(ctx context.Context, op string, p []byte) error {
	s.mu.Lock()
	for s.in.end()+int64(len(p))-s.in.taken > proto.MaxInput {
		if err := s.unusable(op); err != nil {
			s.mu.Unlock()
			return err
		}
		s.crowded++
		came := s.await(ctx)
		s.crowded--
		if !came {
			s.mu.Unlock()
			return s.c.named(op, ctxError(ctx, op))
		}
	}
	if err := s.unusable(op); err != nil {
		s.mu.Unlock()
		return err
	}
	s.in.kept = append(s.in.kept, p...)
	l := s.link
	s.mu.Unlock()
	if l != nil {
		s.push(l)
	}
	return nil
}

// push sends all kept input that this connection has not been sent. What it
// fails with the pump sees.
func (s *Session) push(l *link) {
	select {
	case l.writing <- struct{}{}:
		defer func() { <-l.writing }()
	case <-l.done:
		return
	}
	for {
		s.mu.Lock()
		from := min(max(l.sent, s.in.base), s.in.end())
		p := s.in.kept[from-s.in.base:]
		p = p[:min(len(p), proto.MaxChunk)]
		msg := append([]byte{proto.Stdin}, p...)
		l.sent = from + int64(len(p))
		s.mu.Unlock()
		if len(p) == 0 {
			return
		}
		if l.conn.WriteMessage(websocket.BinaryMessage, msg) != nil {
			l.drop()
			return
		}
	}
}
