package dispatch

import (
	"context"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

type ptyOpenRequest struct {
	sandboxRef
	Command string            `json:"command"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Rows    int               `json:"rows"`
	Cols    int               `json:"cols"`
	User    string            `json:"user"`
	Pipes   bool              `json:"pipes"` // three pipes instead of a terminal
}

type ptyAttachRequest struct {
	sandboxRef
	ID       string `json:"id"`
	Takeover bool   `json:"takeover"`
	Since    int64  `json:"since"`
}

// ptyReply is a session. The handles come when it is made.
type ptyReply struct {
	Terminal     Handle `json:"terminal,omitempty"`
	ID           string `json:"id"`
	Mode         string `json:"mode"`
	Closed       bool   `json:"closed"`
	ReplayOffset *int64 `json:"replay_offset,omitempty"` // absent: nothing was replayed
	Stdin        Handle `json:"stdin,omitempty"`
	Stdout       Handle `json:"stdout,omitempty"`
	Stderr       Handle `json:"stderr,omitempty"`
}

func (t *terminal) about() ptyReply {
	r := ptyReply{ID: t.session.SessionID(), Mode: t.session.Mode(), Closed: t.session.Closed()}
	if at, ok := t.session.ReplayOffset(); ok {
		r.ReplayOffset = &at
	}
	return r
}

func ptyOpen(o *operation, s *core.Sandbox, r ptyOpenRequest) (reply, error) {
	session, err := s.OpenPTY(o.ctx, core.PTYSpec{
		Command: r.Command, Cwd: r.Cwd, Env: r.Env, Rows: r.Rows, Cols: r.Cols, User: r.User, NoTerminal: r.Pipes,
	})
	return o.opened(s, session, err)
}

func ptyAttach(o *operation, s *core.Sandbox, r ptyAttachRequest) (reply, error) {
	session, err := s.AttachPTY(o.ctx, r.ID, r.Takeover, r.Since)
	return o.opened(s, session, err)
}

// opened answers with the handles of a session that was made, or says why there is none.
func (o *operation) opened(sb *core.Sandbox, session core.PTYSession, err error) (reply, error) {
	if err != nil {
		if o.ctx.Err() != nil {
			err = &core.Error{Kind: core.KindCanceled, Op: "pty", Provider: sb.Provider().Name(), SandboxID: sb.ID(), Err: err}
		}
		return reply{}, err
	}
	return o.handOver(sb, session)
}

// handOver gives the host a session's handles. The sandbox is nil for one that was dialed.
func (o *operation) handOver(sb *core.Sandbox, session core.PTYSession) (reply, error) {
	t, err := newTerminal(o, sb, session)
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), closeTimeout)
		defer cancel()
		_ = session.Close(ctx) // the first failure is the one to tell
		return reply{}, err
	}
	r := t.about()
	r.Terminal, r.Stdin, r.Stdout, r.Stderr = t.handle, t.streams[0], t.streams[1], t.streams[2]
	rep, err := answer(r)
	rep.undo = func() { _ = t.close(context.Background()) }
	return rep, err
}

// onTerminal is the handler of an operation on a terminal with nothing more to say.
func onTerminal(do func(*terminal, context.Context) error) handler {
	return on(func(o *operation, t *terminal, _ terminalRef) (reply, error) {
		if err := do(t, o.ctx); err != nil {
			return reply{}, err
		}
		return answer(t.about())
	})
}

type resizeRequest struct {
	terminalRef
	Rows int `json:"rows"`
	Cols int `json:"cols"`
}

func ptyResize(o *operation, t *terminal, r resizeRequest) (reply, error) {
	return reply{}, t.session.Resize(o.ctx, r.Rows, r.Cols)
}

type signalRequest struct {
	terminalRef
	Signal string `json:"signal"`
}

func ptySignal(o *operation, t *terminal, r signalRequest) (reply, error) {
	t.settle(o.ctx)
	return reply{}, t.session.Signal(o.ctx, r.Signal)
}

type exitReply struct {
	ExitCode int `json:"exit_code"`
}

func ptyWait(o *operation, t *terminal, _ terminalRef) (reply, error) {
	ctx, cancel := context.WithCancel(o.ctx)
	defer cancel()
	defer context.AfterFunc(t.ctx, cancel)()
	code, err := t.session.WaitExit(ctx)
	if err != nil {
		return reply{}, err
	}
	rep, err := answer(exitReply{code})
	rep.aux = uint32(int32(code))
	return rep, err
}

func ptyClose(o *operation, req []byte) (reply, error) {
	var r terminalRef
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	t, err := r.find(o)
	if err != nil { // closed already
		return reply{}, nil
	}
	return reply{}, t.close(o.ctx)
}

// pause stops a sandbox. Its terminals stand still meanwhile, and their hosts need not care.
func pause(s *core.Sandbox, o *operation) error {
	l := o.bridge.lib
	for _, v := range l.table.all(tagTerminal) {
		if t := v.(*terminal); t.sandbox == s {
			t.settle(o.ctx)
		}
	}
	l.hold(s, func(t *terminal) { t.paused = true })
	err := s.Pause(o.ctx)
	if err != nil {
		l.hold(s, func(t *terminal) { t.paused = false })
	}
	return err
}

func resume(s *core.Sandbox, o *operation) error {
	err := s.Resume(o.ctx)
	if err == nil {
		o.bridge.lib.hold(s, func(t *terminal) { t.paused = false })
	}
	return err
}
