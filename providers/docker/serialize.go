package docker

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// descriptorID is the key of a sandbox's description; nothing else is needed.
const descriptorID = "sandbox_id"

// nameLetters are those of containers' names. A name becomes a part of paths, of the engine's API and on this host.
const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"

// connectTimeout bounds how long an agent that should be there may take to answer.
const connectTimeout = 15 * time.Second

// Serialize implements core.Connector.
func (p *Provider) Serialize(ctx context.Context, in core.Instance, _ string, defaults core.Defaults) (map[string]any, error) {
	i, ok := in.(*instance)
	if !ok {
		return nil, core.Errorf(core.KindInvalid, "serialize", "the sandbox is not one of provider %s", providerName)
	}
	err := i.together(func(one *instance) error {
		if one == i {
			return i.run.handover(ctx, defaults)
		}
		return one.run.handover(ctx, core.Defaults{})
	})
	if err != nil {
		return nil, err
	}
	return map[string]any{descriptorID: i.name}, nil
}

// Connect implements core.Connector.
func (p *Provider) Connect(ctx context.Context, descriptor map[string]any) (core.Instance, core.Defaults, error) {
	fail := func(err error) (core.Instance, core.Defaults, error) {
		if ctx.Err() != nil {
			return nil, core.Defaults{}, core.Errorf(core.KindCanceled, "connect", "canceled: %w", context.Cause(ctx))
		}
		kind := core.KindCreate
		if core.KindOf(err) == core.KindNotFound {
			kind = core.KindNotFound
		}
		return nil, core.Defaults{}, &core.Error{Kind: kind, Op: "connect", Provider: providerName, Err: err}
	}
	name, _ := descriptor[descriptorID].(string)
	if name == "" {
		return fail(fmt.Errorf("connect requires a %s in the descriptor", descriptorID))
	}
	if strings.ContainsFunc(name, func(r rune) bool { return !strings.ContainsRune(nameLetters, r) }) || strings.HasPrefix(name, ".") {
		return fail(fmt.Errorf("cannot connect to sandbox %q: containers have no such names", name))
	}
	if _, err := p.engineVersion(ctx); err != nil {
		return fail(fmt.Errorf("cannot connect to sandbox %s: %w", name, err))
	}
	c, err := p.engine.ContainerInspect(ctx, name)
	if err != nil {
		kind := core.KindSandbox
		if notFound(err) {
			kind = core.KindNotFound
		}
		return fail(core.Errorf(kind, "", "cannot connect to sandbox %s: %w", name, p.explained(ctx, err)))
	}
	if v := stateVerdict(c.State); v.status != core.StatusRunning && v.status != core.StatusPaused {
		return fail(core.Errorf(core.KindSandbox, "", "cannot connect to sandbox %s: %s", name, v.reason))
	}
	i, defaults, err := p.takeUp(ctx, name, c)
	if err != nil {
		return fail(fmt.Errorf("cannot connect to sandbox %s: %w", name, err))
	}
	if err := p.takeUpSidecars(ctx, i, descriptor[descriptorSidecars]); err != nil {
		i.Detach()
		return fail(fmt.Errorf("cannot connect to sandbox %s: %w", name, err))
	}
	return i, defaults, nil
}

// takeUp opens the way into a container that runs. What it needs to know the container's labels tell.
func (p *Provider) takeUp(ctx context.Context, name string, c container.InspectResponse) (*instance, core.Defaults, error) {
	labels := c.Config.Labels
	i := &instance{p: p, name: name, image: c.Config.Image}
	if ttl, err := strconv.ParseFloat(labels[labelTTL], 64); err == nil {
		i.ttl = seconds(ttl)
	}
	if started, err := time.Parse(time.RFC3339Nano, c.State.StartedAt); err == nil {
		i.created = started
	}
	w, ok := wayOf(labels[labelWay])
	if !ok {
		// Somebody else made it; the engine's exec works in any container.
		w = wayEngine
	}
	if c.State.Paused {
		return nil, core.Defaults{}, core.Errorf(core.KindSandbox, "", "the container is paused; resume it first")
	}
	if w == wayEngine {
		p.engineSlots()
		r := &engineRunner{i: i, args: p.args, user: c.Config.User, shell: p.shellFor(ctx, c.Image, name)}
		i.run = r
		return i, r.defaults(ctx, c.Config.WorkingDir), nil
	}
	var err error
	if i.host, err = agent.OpenHostDir(name); err != nil {
		return nil, core.Defaults{}, fmt.Errorf("%w: a sandbox can be taken up by the user and on the machine that made it", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("waited %gs", connectTimeout.Seconds()))
	defer cancel()
	alive := func(ctx context.Context) error {
		if v := i.diagnose(ctx); v.status != core.StatusRunning && v.status != core.StatusUnknown {
			return fmt.Errorf("%s", v.reason)
		}
		return nil
	}
	if err := i.connectAgent(ctx, w, false, alive); err != nil {
		return nil, core.Defaults{}, err
	}
	r, _ := i.run.(*agentRunner)
	return i, r.client.Info().Defaults, nil
}
