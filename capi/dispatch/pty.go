package dispatch

import (
	"context"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

type ptyOpenRequest struct {
	Sandbox Handle            `json:"sandbox"`
	Command string            `json:"command"`
	Cwd     string            `json:"cwd"`
	Env     map[string]string `json:"env"`
	Rows    int               `json:"rows"`
	Cols    int               `json:"cols"`
	User    string            `json:"user"`
	Pipes   bool              `json:"pipes"` // three pipes instead of a terminal
}

type ptyAttachRequest struct {
	Sandbox  Handle `json:"sandbox"`
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

func ptyOpen(o *operation, req []byte) (reply, error) {
	var r ptyOpenRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	return o.ptySession(r.Sandbox, func(s *core.Sandbox) (core.PTYSession, error) {
		return s.OpenPTY(o.ctx, core.PTYSpec{
			Command: r.Command, Cwd: r.Cwd, Env: r.Env, Rows: r.Rows, Cols: r.Cols, User: r.User, NoTerminal: r.Pipes,
		})
	})
}

func ptyAttach(o *operation, req []byte) (reply, error) {
	var r ptyAttachRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	return o.ptySession(r.Sandbox, func(s *core.Sandbox) (core.PTYSession, error) {
		return s.AttachPTY(o.ctx, r.ID, r.Takeover, r.Since)
	})
}

// ptySession makes a session and answers with its handles.
func (o *operation) ptySession(sandbox Handle, open func(*core.Sandbox) (core.PTYSession, error)) (reply, error) {
	sb, err := o.sandbox(sandbox)
	if err != nil {
		return reply{}, err
	}
	session, err := open(sb)
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

type terminalRequest struct {
	Terminal Handle `json:"terminal"`
}

func (o *operation) terminal(h Handle) (*terminal, error) {
	if t, ok := lookup[*terminal](&o.bridge.lib.table, h); ok {
		return t, nil
	}
	return nil, core.Errorf(core.KindPTY, "pty", "the session is closed")
}

// onTerminal is the handler of an operation on a terminal with nothing more to say.
func onTerminal(do func(*terminal, context.Context) error) handler {
	return func(o *operation, req []byte) (reply, error) {
		var r terminalRequest
		if err := decode(req, &r); err != nil {
			return reply{}, err
		}
		t, err := o.terminal(r.Terminal)
		if err != nil {
			return reply{}, err
		}
		if err := do(t, o.ctx); err != nil {
			return reply{}, err
		}
		return answer(t.about())
	}
}

type resizeRequest struct {
	Terminal Handle `json:"terminal"`
	Rows     int    `json:"rows"`
	Cols     int    `json:"cols"`
}

func ptyResize(o *operation, req []byte) (reply, error) {
	var r resizeRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	t, err := o.terminal(r.Terminal)
	if err != nil {
		return reply{}, err
	}
	return reply{}, t.session.Resize(o.ctx, r.Rows, r.Cols)
}

type signalRequest struct {
	Terminal Handle `json:"terminal"`
	Signal   string `json:"signal"`
}

func ptySignal(o *operation, req []byte) (reply, error) {
	var r signalRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	t, err := o.terminal(r.Terminal)
	if err != nil {
		return reply{}, err
	}
	t.settle(o.ctx)
	return reply{}, t.session.Signal(o.ctx, r.Signal)
}

type exitReply struct {
	ExitCode int `json:"exit_code"`
}

func ptyWait(o *operation, req []byte) (reply, error) {
	var r terminalRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	t, err := o.terminal(r.Terminal)
	if err != nil {
		return reply{}, err
	}
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
	var r terminalRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	t, err := o.terminal(r.Terminal)
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
