package core

import (
	"context"
	"errors"
	"sync"
	"time"
)

// reattachTimeout bounds the return to sessions after a pause, also when the caller has gone.
const reattachTimeout = 30 * time.Second

var errStopped = errors.New("the sandbox was stopped")

// OpenPTY starts a terminal session with the sandbox's defaults. It ends with the sandbox at the latest.
func (s *Sandbox) OpenPTY(ctx context.Context, spec PTYSpec) (PTYSession, error) {
	const op = "pty create"
	inst, defaults, err := s.running(op)
	if err != nil {
		return nil, err
	}
	o, ok := inst.(PTYOpener)
	if !ok {
		return nil, Errorf(KindNotSupported, op, "provider %s does not support PTY sessions; use exec", s.provider.Name())
	}
	if spec.Cwd == "" {
		spec.Cwd = defaults.Workdir
	}
	if spec.User == "" {
		spec.User = defaults.User
	}
	if err := spec.Validate(); err != nil {
		return nil, WithSandbox(err, KindInvalid, op, s.provider.Name(), inst.ID())
	}
	session, err := o.OpenPTY(ctx, spec)
	if err != nil {
		return nil, WithSandbox(err, KindPTY, op, s.provider.Name(), inst.ID())
	}
	return s.track(session)
}

// AttachPTY connects to a session that was opened earlier, here or by another
// process; see PTYAttacher.
func (s *Sandbox) AttachPTY(ctx context.Context, id string, takeover bool, since int64) (PTYSession, error) {
	const op = "pty attach"
	inst, _, err := s.running(op)
	if err != nil {
		return nil, err
	}
	a, ok := inst.(PTYAttacher)
	if !ok {
		return nil, Errorf(KindNotSupported, op, "provider %s does not support re-attaching PTY sessions", s.provider.Name())
	}
	session, err := a.AttachPTY(ctx, id, takeover, since)
	if err != nil {
		return nil, WithSandbox(err, KindPTY, op, s.provider.Name(), inst.ID())
	}
	return s.track(session)
}

// track remembers a session for as long as it is open.
func (s *Sandbox) track(session PTYSession) (PTYSession, error) {
	t := s.terminals.add(session)
	s.mu.Lock()
	gone := s.state == stateStopped || s.state == stateDetached
	s.mu.Unlock()
	if gone {
		// Those that were open when it ended have been told already.
		s.terminals.abandon(errStopped)
	}
	return t, nil
}

// terminals are the open sessions of one sandbox.
type terminals struct {
	mu   sync.Mutex
	open map[*terminal]bool // whether it was detached by a pause
}

// terminal is a session that its sandbox knows of.
type terminal struct {
	PTYSession
	of *terminals
}

// Unwrap gives the session as its provider made it; see PTYPromptOf.
func (t *terminal) Unwrap() PTYSession { return t.PTYSession }

// Close implements PTYSession.
func (t *terminal) Close(ctx context.Context) error {
	t.of.mu.Lock()
	delete(t.of.open, t)
	t.of.mu.Unlock()
	return t.PTYSession.Close(ctx)
}

func (ts *terminals) add(session PTYSession) *terminal {
	t := &terminal{PTYSession: session, of: ts}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.open == nil {
		ts.open = map[*terminal]bool{}
	}
	for old := range ts.open {
		if old.Closed() {
			delete(ts.open, old) // it ended by itself
		}
	}
	ts.open[t] = false
	return t
}

// list gives the sessions, or only those that a pause detached.
func (ts *terminals) list(paused bool) []*terminal {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var all []*terminal
	for t, suspended := range ts.open {
		if suspended || !paused {
			all = append(all, t)
		}
	}
	return all
}

func (ts *terminals) suspended() []*terminal { return ts.list(true) }

// mark notes whether a session that is still open was detached by a pause.
func (ts *terminals) mark(t *terminal, suspended bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if _, ok := ts.open[t]; ok {
		ts.open[t] = suspended
	}
}

// suspend detaches all sessions that are attached, and gives them.
func (ts *terminals) suspend() []*terminal {
	var mu sync.Mutex
	var detached []*terminal
	each(ts.list(false), func(t *terminal) {
		if t.Suspend() {
			ts.mark(t, true)
			mu.Lock()
			defer mu.Unlock()
			detached = append(detached, t)
		}
	})
	return detached
}

// reattach attaches again what suspend has detached. A session to which there is
// no way back is given up, so that its readers get the reason.
func (ts *terminals) reattach(ctx context.Context, detached []*terminal) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reattachTimeout)
	defer cancel()
	each(detached, func(t *terminal) {
		ts.mark(t, false)
		if err := t.Reattach(ctx); err != nil {
			t.Abandon(err)
		}
	})
}

// abandon ends all sessions on this side.
func (ts *terminals) abandon(reason error) {
	ts.mu.Lock()
	all := ts.open
	ts.open = nil
	ts.mu.Unlock()
	for t := range all {
		t.Abandon(reason)
	}
}

// each works on all sessions at once: a pause must not take the longer the more there are.
func each(all []*terminal, f func(*terminal)) {
	var wg sync.WaitGroup
	for _, t := range all {
		wg.Go(func() { f(t) })
	}
	wg.Wait()
}
