package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// cleanupTimeout bounds the removal of a sandbox that was not to be.
	cleanupTimeout = 60 * time.Second
	// createTimeout bounds the one request that is not given up with its caller: what
	// it makes could not be found afterwards.
	createTimeout = 60 * time.Second
	// unprovenTimeout is how long an agent may take to answer over a socket before
	// it is concluded that its directory is not on the engine's machine.
	unprovenTimeout = 10 * time.Second
)

// Create implements core.Provider.
func (p *Provider) Create(ctx context.Context, spec core.Spec) (core.Instance, error) {
	stage := "asking the engine what it is"
	bounded := ctx
	limit := p.cfg.Create.startTimeout()
	if limit > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	inst, err := p.create(bounded, spec, &stage)
	switch {
	case err == nil:
		return inst, nil
	case ctx.Err() != nil:
		return nil, &core.Error{Kind: core.KindCanceled, Op: "create", Provider: providerName,
			Err: fmt.Errorf("canceled while %s: %w", stage, keepCause(err, context.Cause(ctx)))}
	case bounded.Err() != nil:
		err = core.Errorf(core.KindTimeout, "", "timed out after %gs (create.start_timeout_s) while %s: %w", limit.Seconds(), stage, err)
	}
	kind := core.KindCreate
	if core.KindOf(err) == core.KindVerification {
		kind = core.KindVerification
	}
	return nil, &core.Error{Kind: kind, Op: "create", Provider: providerName, Err: err}
}

// keepCause joins why a caller gave up to what came of it, unless that says so already.
func keepCause(err, cause error) error {
	if errors.Is(err, cause) {
		return err
	}
	return errors.Join(cause, err)
}

// create makes a sandbox step by step; stage says which, for the message of a timeout.
func (p *Provider) create(ctx context.Context, spec core.Spec, stage *string) (*instance, error) {
	name, err := imageName(spec.Image)
	if err != nil {
		return nil, core.Errorf(core.KindInvalid, "", "%w", err)
	}
	engine, err := p.engineVersion(ctx)
	if err != nil {
		return nil, err
	}
	*stage = "getting the image " + name
	img, err := p.ensureImage(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := checkPlatform(name, img, engine, p.cfg.Create.Platform); err != nil {
		return nil, err
	}
	pl, err := newPlan(&p.cfg, spec, name, img, engine)
	if err != nil {
		return nil, err
	}
	*stage = "starting a container of the image " + name
	watch, stop := context.WithCancel(ctx)
	defer stop()
	inst, exit, err := p.launchSomehow(ctx, watch, pl)
	if err != nil {
		return nil, err
	}
	*stage = "starting the sidecars"
	err = p.launchSidecars(ctx, inst, spec.Sidecars, engine)
	if err == nil {
		*stage = "waiting for the sandbox to become ready"
		err = p.finish(ctx, inst, spec, exit)
	}
	if err != nil {
		return nil, errors.Join(err, inst.discard(ctx))
	}
	return inst, nil
}

// finish checks a new sandbox and puts the spec's files into it.
func (p *Provider) finish(ctx context.Context, inst *instance, spec core.Spec, exit <-chan int64) error {
	if spec.ReadyTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, spec.ReadyTimeout, fmt.Errorf("the sandbox was not ready within %gs (ready_timeout_s)", spec.ReadyTimeout.Seconds()))
		defer cancel()
	}
	if err := probe(ctx, p.cfg.Probe, inst); err != nil {
		if _, plain := inst.run.(*engineRunner); plain {
			return inst.endedEarly(ctx, exit, err)
		}
		return err
	}
	return writeFiles(ctx, inst, spec.Files)
}

// unsuited means that a way can't be gone on this engine or with this image; another may.
type unsuited struct{ err error }

func (u *unsuited) Error() string { return u.err.Error() }
func (u *unsuited) Unwrap() error { return u.err }

// errOOMScore means that the engine may not protect a process from being chosen when memory runs out.
var errOOMScore = errors.New("the engine can't lower a container's out-of-memory score")

// unscored are the engines, by host, that turned out not to have the right to
// lower a container's score. The process remembers it for all its providers:
// many make one for each sandbox, and finding out costs a container.
var unscored sync.Map

// giveUpOOMScore makes all further containers of the engine without that protection.
func (p *Provider) giveUpOOMScore() { unscored.Store(p.target.host, true) }

func isUnsuited(err error) bool {
	var u *unsuited
	return errors.As(err, &u)
}

// launchSomehow goes through the ways until one works.
func (p *Provider) launchSomehow(ctx, watch context.Context, pl *plan) (*instance, <-chan int64, error) {
	ways, proven := p.firstWays()
	var before error
	for n, w := range ways {
		if w == wayEngine && before != nil {
			p.warnOnce("engine", "no agent can run in sandboxes here; each command is an engine exec, which is slower", "reason", before.Error())
			p.engineSlots()
		}
		last := proven || n == len(ways)-1
		inst, exit, err := p.launch(ctx, watch, pl, w, last)
		if errors.Is(err, errOOMScore) && ctx.Err() == nil {
			p.giveUpOOMScore()
			inst, exit, err = p.launch(ctx, watch, pl, w, last)
		}
		if w == wayStream && isUnsuited(err) && ctx.Err() == nil {
			// The volume may have been emptied, or filled by somebody else at this moment.
			p.forgetVolume(pl.engine.Arch)
			inst, exit, err = p.launch(ctx, watch, pl, w, last)
		}
		if err == nil {
			p.settle(w)
			return inst, exit, nil
		}
		if !isUnsuited(err) || ctx.Err() != nil {
			return nil, nil, err
		}
		slog.DebugContext(ctx, "another way into the sandbox is tried", "provider", providerName, "way", w.String(), "reason", err.Error())
		before = err
	}
	return nil, nil, before
}

// engineSlots limits commands once they cost an engine exec each.
func (p *Provider) engineSlots() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots == nil {
		p.slots = make(chan struct{}, engineConcurrency)
	}
}

// launch makes and starts one container, and connects to it. The channel gives
// the code with which the container ends, for as long as watch goes on. last:
// there is no other way to try, so it gets all the time there is.
func (p *Provider) launch(ctx, watch context.Context, pl *plan, w way, last bool) (inst *instance, exit <-chan int64, err error) {
	inst = &instance{p: p, name: pl.name, ttl: pl.spec.TTL, image: pl.image}
	defer func() {
		if err != nil {
			err = errors.Join(err, inst.discard(ctx))
		}
	}()
	var spec containerSpec
	if w == wayEngine {
		spec = pl.engineContainer(&p.cfg)
	} else if spec, err = p.agentContainer(ctx, pl, w, inst); err != nil {
		return inst, nil, err
	}
	if err := p.makeContainer(ctx, pl.name, spec); err != nil {
		return inst, nil, p.createFailed(ctx, pl, w, err)
	}
	exit = p.engine.ContainerExit(watch, pl.name)
	if err := p.engine.ContainerStart(ctx, pl.name); err != nil {
		return inst, exit, p.startFailed(ctx, pl, w, spec.Host.OomScoreAdj, err)
	}
	inst.created = time.Now()
	if w == wayEngine {
		return inst, exit, inst.useEngine(ctx, pl)
	}
	return inst, exit, inst.useAgent(ctx, w, exit, last)
}

// makeContainer asks for a container and waits for the answer even when the
// caller gives up: only then it can be removed for sure.
func (p *Provider) makeContainer(ctx context.Context, name string, spec containerSpec) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	err := p.engine.ContainerCreate(detached, name, spec)
	if ctx.Err() != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the engine did not answer the request to create a container within %gs", createTimeout.Seconds())
	}
	return err
}

// createFailed explains why the engine refused to make a container.
func (p *Provider) createFailed(ctx context.Context, pl *plan, w way, err error) error {
	text := strings.ToLower(err.Error())
	wrapped := fmt.Errorf("create a container of the image %s failed: %w", pl.image, p.explained(ctx, err))
	switch {
	case w == waySocket && strings.Contains(text, "bind source path does not exist") && strings.Contains(text, "nemo-gym-sandbox"):
		return &unsuited{fmt.Errorf("the engine does not see this machine's files: %w", wrapped)}
	case notFound(err):
		return core.Errorf(core.KindNotFound, "", "%w", wrapped)
	}
	return wrapped
}

// startFailed explains why a container did not start.
func (p *Provider) startFailed(ctx context.Context, pl *plan, w way, oomScore int, err error) error {
	text := strings.ToLower(err.Error())
	wrapped := fmt.Errorf("start a container of the image %s failed: %w", pl.image, p.explained(ctx, err))
	has := func(s string) bool { return strings.Contains(text, s) }
	switch {
	case has("exec format error"):
		wrapped = fmt.Errorf("%w: the program is built for another architecture than the engine's %s/%s; use an image for that platform", wrapped, pl.engine.OS, pl.engine.Arch)
		if w != wayEngine {
			return &unsuited{wrapped}
		}
	case w == waySocket && has("bind source path does not exist"):
		return &unsuited{wrapped}
	case w != wayEngine && oomScore < 0 && (has("oom_score_adj") || has("final child's pid from pipe")):
		// The latter is all that an older runtime says when it is not allowed to.
		return fmt.Errorf("%w: %w", errOOMScore, wrapped)
	case w != wayEngine && has(agentBinary) && (has("permission denied") || has("operation not permitted") || has("no such file")):
		return &unsuited{fmt.Errorf("the agent can't be run in the sandbox: %w", wrapped)}
	case w == wayEngine && (has("no such file or directory") || has("executable file not found")):
		return fmt.Errorf("%w: has the image a %s? see create.keepalive_shell", wrapped, p.cfg.Create.KeepaliveShell)
	}
	return wrapped
}

// discard removes what a failed start made, also when its caller has gone.
func (i *instance) discard(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := i.Destroy(ctx); err != nil {
		return fmt.Errorf("clean up after it: %w", err)
	}
	i.Detach()
	return nil
}
