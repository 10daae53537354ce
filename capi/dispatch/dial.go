package dispatch

import (
	"context"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// ptyDialer is a provider whose terminals can be reached by the address of what serves them, without a sandbox.
type ptyDialer interface {
	DialPTY(ctx context.Context, at core.Endpoint, timeout time.Duration, spec core.PTYSpec) (core.PTYSession, error)
	DialAttachPTY(ctx context.Context, at core.Endpoint, timeout time.Duration, id string, pipes, takeover bool, since int64) (core.PTYSession, error)
}

// ptyDialRequest attaches when it has an id, else it opens a session.
type ptyDialRequest struct {
	providerRef
	URL      string            `json:"url"`
	Headers  map[string]string `json:"headers"`
	TimeoutS float64           `json:"timeout_s"` // of each request; 0: the provider's

	ID       string `json:"id"`
	Takeover bool   `json:"takeover"`
	Since    int64  `json:"since"`

	Command string `json:"command"`
	Cwd     string `json:"cwd"`
	Rows    int    `json:"rows"`
	Cols    int    `json:"cols"`
	Pipes   bool   `json:"pipes"`
}

func ptyDial(o *operation, p core.Provider, r ptyDialRequest) (reply, error) {
	d, ok := p.(ptyDialer)
	if !ok {
		return reply{}, core.Errorf(core.KindNotSupported, "pty", "terminals of provider %s have no address of their own", p.Name())
	}
	if !(r.TimeoutS >= 0 && r.TimeoutS < (1<<62)/float64(time.Second)) {
		return reply{}, core.Errorf(core.KindInvalid, "pty", "timeout_s has to be a number of seconds from 0 on")
	}
	at := core.Endpoint{URL: r.URL, Headers: r.Headers}
	timeout := time.Duration(r.TimeoutS * float64(time.Second))
	var (
		session core.PTYSession
		err     error
	)
	if r.ID != "" {
		session, err = d.DialAttachPTY(o.ctx, at, timeout, r.ID, r.Pipes, r.Takeover, r.Since)
	} else {
		session, err = d.DialPTY(o.ctx, at, timeout, core.PTYSpec{Command: r.Command, Cwd: r.Cwd, Rows: r.Rows, Cols: r.Cols, NoTerminal: r.Pipes})
	}
	if err != nil {
		if o.ctx.Err() != nil {
			err = &core.Error{Kind: core.KindCanceled, Op: "pty", Provider: p.Name(), Err: err}
		}
		return reply{}, core.WithSandbox(err, core.KindPTY, "pty", p.Name(), "")
	}
	return o.handOver(nil, session)
}
