package pty

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// stderrQuiet is how long stderr is waited for when the command has ended: it is a stream of its own.
	stderrQuiet = 50 * time.Millisecond
	// statusQuiet is how long the rest of a status without a line end is waited for.
	statusQuiet = time.Second
	// defaultPoll is how often a detached command is looked at.
	defaultPoll = 15 * time.Second
)

// Exec implements core.PTYSession. Commands of one session run one after the
// other. When ctx ends first the shell still runs the command, and the result holds what it printed.
func (s *Session) Exec(ctx context.Context, command string) (core.PTYResult, error) {
	const op = "pty exec"
	out, done, err := s.typeIn(ctx, op, command)
	if err != nil {
		return core.PTYResult{}, err
	}
	defer done()
	var stderr []byte
	take := func(from core.Stream, p []byte) {
		if from == core.Stderr {
			stderr = append(stderr, p...)
		} else {
			out.feed(p)
		}
	}
	if _, err = s.collect(ctx, op, out, take, 0); err == nil && s.Mode() != "pty" {
		err = s.quiet(ctx, op, take, stderrQuiet, core.Stderr)
	}
	return result(out, stderr), err
}

// RunDetached implements core.PTYSession. When ctx ends first the shell still
// runs the command, and the session may be detached.
func (s *Session) RunDetached(ctx context.Context, command string, poll time.Duration) (core.PTYResult, error) {
	const op = "pty run detached"
	if poll <= 0 {
		poll = defaultPoll
	}
	out, done, err := s.typeIn(ctx, op, command)
	if err != nil {
		return core.PTYResult{}, err
	}
	defer done()
	take := func(_ core.Stream, p []byte) { out.feed(p) }
	for {
		complete, err := s.collect(ctx, op, out, take, s.c.t().quiet)
		if err != nil || complete {
			return result(out, nil), err
		}
		if err := s.Detach(); err != nil {
			if s.hasExited() {
				continue // for the last words
			}
			return result(out, nil), err
		}
		if !sleep(ctx, poll) {
			return result(out, nil), s.c.named(op, ctxError(ctx, op))
		}
		if err := s.Reattach(ctx); err != nil {
			return result(out, nil), err
		}
	}
}

func result(out *marked, stderr []byte) core.PTYResult {
	code, known := out.status()
	if !known {
		code = core.NoExitCode
	}
	return core.PTYResult{Stdout: out.output(), Stderr: stderr, Code: code, Known: known}
}

// typeIn types a command when its turn has come. done gives the turn to the next.
func (s *Session) typeIn(ctx context.Context, op, command string) (out *marked, done func(), err error) {
	m := newMarkers()
	line, err := typed(command, m)
	if err != nil {
		return nil, nil, s.c.named(op, err)
	}
	select {
	case s.typing <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, s.c.named(op, ctxError(ctx, op))
	}
	done = func() { <-s.typing }
	if err := s.Write(ctx, line); err != nil {
		done()
		return nil, nil, err
	}
	return newMarked(m), done, nil
}

// collect reads until the command's end or, when quiet is not 0, until nothing
// has come for so long.
func (s *Session) collect(ctx context.Context, op string, out *marked, take func(core.Stream, []byte), quiet time.Duration) (complete bool, err error) {
	for !out.complete() {
		wait := quiet
		if out.hasStatus() {
			wait = statusQuiet
		}
		from, p, err := s.within(ctx, op, wait, core.Stdout, core.Stderr)
		switch {
		case errors.Is(err, errQuiet):
			return out.hasStatus(), nil
		case errors.Is(err, io.EOF):
			if out.hasStatus() {
				return true, nil
			}
			return false, s.c.errorf(op, "the PTY session ended before the command finished")
		case err != nil:
			return false, err
		}
		take(from, p)
	}
	return true, nil
}

// quiet reads some streams until nothing has come for so long.
func (s *Session) quiet(ctx context.Context, op string, take func(core.Stream, []byte), quiet time.Duration, of ...core.Stream) error {
	for {
		from, p, err := s.within(ctx, op, quiet, of...)
		if errors.Is(err, errQuiet) || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		take(from, p)
	}
}

var errQuiet = errors.New("nothing came")

// within is take with a limit of its own, 0 for none.
func (s *Session) within(ctx context.Context, op string, limit time.Duration, of ...core.Stream) (core.Stream, []byte, error) {
	if limit == 0 {
		return s.take(ctx, op, of...)
	}
	short, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	from, p, err := s.take(short, op, of...)
	if err != nil && short.Err() != nil && ctx.Err() == nil && core.KindOf(err) == core.KindTimeout {
		err = errQuiet
	}
	return from, p, err
}

func (s *Session) hasExited() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.exited
}
