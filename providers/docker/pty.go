package docker

import (
	"context"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// OpenPTY implements core.PTYOpener.
func (i *instance) OpenPTY(ctx context.Context, spec core.PTYSpec) (core.PTYSession, error) {
	c, err := i.terminals("pty create")
	if err != nil {
		return nil, err
	}
	if spec.User == "root" {
		spec.User = "0" // also where the image has no list of users
	}
	return c.OpenPTY(ctx, spec)
}

// AttachPTY implements core.PTYAttacher.
func (i *instance) AttachPTY(ctx context.Context, id string, takeover bool, since int64) (core.PTYSession, error) {
	c, err := i.terminals("pty attach")
	if err != nil {
		return nil, err
	}
	return c.AttachPTY(ctx, id, takeover, since)
}

// terminals gives the agent's client: sessions live in the agent.
func (i *instance) terminals(op string) (*agent.Client, error) {
	r, ok := i.run.(*agentRunner)
	if !ok {
		return nil, core.Errorf(core.KindNotSupported, op,
			"terminal sessions need the agent in the container, and this sandbox works through the engine's own exec; set exec.mode to agent or auto")
	}
	return r.client, nil
}
