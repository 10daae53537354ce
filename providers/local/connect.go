package local

import (
	"context"
	"errors"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// descriptorID is the key of a descriptor that names the sandbox.
const descriptorID = "sandbox_id"

// Serialize implements core.Connector. The descriptor is for other processes of
// the same user on this machine; scope makes no difference.
func (p *provider) Serialize(ctx context.Context, ci core.Instance, _ string, defaults core.Defaults) (map[string]any, error) {
	in, ok := ci.(*instance)
	if !ok {
		return nil, core.Errorf(core.KindInvalid, "serialize", "the sandbox belongs to another provider")
	}
	if defaults.Workdir == "" {
		defaults.Workdir = in.rec.Workspace
	}
	if err := in.client.SetDefaults(ctx, defaults); err != nil {
		return nil, err
	}
	if err := in.client.Handover(ctx); err != nil {
		return nil, err
	}
	return map[string]any{descriptorID: in.id}, nil
}

// Connect implements core.Connector.
func (p *provider) Connect(ctx context.Context, descriptor map[string]any) (core.Instance, core.Defaults, error) {
	id, _ := descriptor[descriptorID].(string)
	if !idPattern.MatchString(id) {
		return nil, core.Defaults{}, core.Errorf(core.KindInvalid, "connect", "the descriptor's %s is not that of a local sandbox", descriptorID)
	}
	in, err := p.connect(ctx, id)
	if err != nil {
		return nil, core.Defaults{}, core.WithSandbox(err, core.KindSandbox, "connect", name, id)
	}
	info := in.client.Info()
	return in, core.Defaults{User: info.Defaults.User, Workdir: info.Defaults.Workdir}, nil
}

func (p *provider) connect(ctx context.Context, id string) (*instance, error) {
	dir, err := agent.OpenHostDir(id)
	if err != nil {
		return nil, err
	}
	in := &instance{provider: p, id: id, dir: dir}
	if in.rec, err = loadRecord(dir.Path); err != nil {
		return nil, err
	}
	if !in.rec.Agent.alive() {
		return nil, core.Errorf(core.KindNotFound, "connect", "the local sandbox %s has ended", id)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, defaultReadyTimeout, errors.New("its agent did not answer"))
	defer cancel()
	in.client, err = agent.Connect(ctx, in.options(p.cfg))
	return in, err
}
