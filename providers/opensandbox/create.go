package opensandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// defaultReady is how long a new sandbox may take to answer when nobody says otherwise.
	defaultReady = 30 * time.Second
	// cleanupTimeout bounds the removal of a sandbox that was not to be.
	cleanupTimeout = 60 * time.Second
	// answerPatience is how long a caller that has given up is held until the server
	// names the sandbox that it is making; later it is removed in the background.
	answerPatience = 10 * time.Second
)

// Create implements core.Provider.
func (p *Provider) Create(ctx context.Context, spec core.Spec) (core.Instance, error) {
	fail := func(err error) (core.Instance, error) {
		if ctx.Err() != nil {
			return nil, core.WithSandbox(canceled(ctx, "create"), core.KindCanceled, "create", providerName, "")
		}
		return nil, &core.Error{Kind: createKind(err), Op: "create", Provider: providerName, Err: err}
	}
	o, err := readOptions(spec.ProviderOptions)
	if err != nil {
		return fail(err)
	}
	body, err := newCreateBody(&p.cfg, spec, o)
	if err != nil {
		return fail(err)
	}
	every := orSeconds(p.cfg.Create.RenewIntervalS, 0)
	if every > 0 && spec.TTL <= every {
		return fail(core.Errorf(core.KindInvalid, "", "create.renew_interval_s requires a longer, explicit sandbox ttl_s"))
	}
	if len(spec.Sidecars) > 0 {
		return fail(core.Errorf(core.KindNotSupported, "", "sidecars are not supported: an OpenSandbox sandbox is one container"))
	}
	skip := p.cfg.Create.SkipHealthCheck || o.SkipHealthCheck != nil && *o.SkipHealthCheck
	c := &p.cfg.Create
	var inst *instance
	again := backoff{retries: c.Retries, first: seconds(c.RetryDelayS), limit: seconds(c.RetryMaxDelayS)}
	tries := 0
	err = again.retry(ctx, "making a sandbox", func(ctx context.Context) (err error) {
		if tries++; tries > 1 {
			core.CountRetry(ctx)
		}
		inst, err = p.attempt(ctx, spec, body, skip)
		return err
	})
	if err != nil {
		return fail(err)
	}
	if err := inst.furnish(ctx, spec); err != nil {
		return fail(errors.Join(err, inst.discard(ctx)))
	}
	inst.starting.Store(false)
	inst.oomKills = 0 // nothing has run there before
	if every > 0 {
		inst.renew(spec.TTL, every)
	}
	return inst, nil
}

// createKind classifies what a create failed with.
func createKind(err error) core.Kind {
	switch kind := kindOf(err, core.KindCreate); kind {
	case core.KindVerification, core.KindInvalid, core.KindNotSupported, core.KindTimeout, core.KindAuth:
		return kind
	default:
		return core.KindCreate
	}
}

// attempt makes one sandbox and waits until it works. When it fails nothing is left.
func (p *Provider) attempt(ctx context.Context, spec core.Spec, body *createBody, skip bool) (*instance, error) {
	ready := spec.ReadyTimeout
	if ready <= 0 {
		ready = defaultReady
	}
	limit := orSeconds(p.cfg.Create.TimeoutS, orSeconds(p.cfg.Connection.RequestTimeoutS, 0))
	short, cancel := bounded(ctx, limit, "creating the sandbox")
	defer cancel()
	info, err := p.request(short, body, answerPatience)
	if err != nil {
		return nil, createLate(ctx, short, spec, ready, err)
	}
	inst := p.newInstance(info.ID)
	inst.oomKills, inst.token = 0, spec.Env[tokenVariable]
	inst.kept = core.Defaults{Workdir: spec.Workdir}
	inst.starting.Store(true)
	if err = inst.becomeReady(short, ready, skip, spec.ReadyTimeout); err != nil {
		err = createLate(ctx, short, spec, ready, err)
	} else {
		err = inst.probe(ctx)
	}
	if err != nil {
		// Why it failed is what the caller has to know.
		quietly(ctx, "a sandbox that did not become ready could not be deleted", inst.discard(ctx))
		return nil, err
	}
	return inst, nil
}

// createLate explains an attempt that ran out of its own time.
func createLate(ctx, short context.Context, spec core.Spec, ready time.Duration, err error) error {
	if ctx.Err() != nil || short.Err() == nil {
		return err
	}
	return core.Errorf(core.KindTimeout, "", "Timed out creating a sandbox of image %q (ready_timeout_s %g): %w", spec.Image, ready.Seconds(), err)
}

// request asks for a sandbox. The request is not given up with its caller: what it makes could not be found afterwards. The
// caller is held for as long as patience says; then whoever made the request removes what comes of it.
func (p *Provider) request(ctx context.Context, body *createBody, patience time.Duration) (sandboxInfo, error) {
	if ctx.Err() != nil {
		return sandboxInfo{}, context.Cause(ctx)
	}
	type answer struct {
		info sandboxInfo
		err  error
	}
	limit := orSeconds(p.cfg.Create.RequestTimeoutS, p.cfg.Connection.requestTimeout())
	got, left := make(chan answer), make(chan struct{})
	detached := context.WithoutCancel(ctx)
	remove := func(a answer) {
		if a.err == nil {
			i := p.newInstance(a.info.ID)
			quietly(detached, "a sandbox that nobody waits for any more could not be deleted", i.discard(detached))
		}
	}
	if !p.background(func(context.Context) {
		info, err := p.rest.createSandbox(detached, body, limit)
		select {
		case got <- answer{info, err}:
		case <-left:
			remove(answer{info, err})
		}
	}) {
		return sandboxInfo{}, core.Errorf(core.KindClosed, "", "the provider has been closed")
	}
	select {
	case a := <-got:
		return a.info, a.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-got:
		remove(a)
	case <-timer.C:
		slog.WarnContext(detached, "the server has not yet named the sandbox that it is making; it will be deleted when it does", "provider", providerName)
		close(left)
	}
	return sandboxInfo{}, context.Cause(ctx)
}

// becomeReady waits until the sandbox's daemon answers.
func (i *instance) becomeReady(ctx context.Context, ready time.Duration, skip bool, asked time.Duration) error {
	c := &i.p.cfg.Create
	if c.SkipHealthCheck {
		return i.reconnect(ctx, asked)
	}
	ctx, cancel := bounded(ctx, ready, "waiting for the sandbox to become ready")
	defer cancel()
	if err := i.awaitEndpoint(ctx); err != nil || skip {
		return err
	}
	return i.awaitDaemon(ctx, pingInterval)
}

// reconnect resolves the daemon's place until that works: all there is to do when its health does not count.
func (i *instance) reconnect(ctx context.Context, asked time.Duration) error {
	c := &i.p.cfg.Create
	each := seconds(c.ConnectAttemptTimeoutS)
	limit := asked
	if limit <= 0 {
		limit = orSeconds(c.TimeoutS, each)
	}
	ctx, cancel := bounded(ctx, limit, "connecting to the sandbox")
	defer cancel()
	for {
		short, done := bounded(ctx, each, "connecting to the sandbox")
		_, err := i.locate(short)
		done()
		if err == nil {
			return nil
		}
		if !mayHeal(err) && codeOf(err) != codeNoPodIP {
			return err
		}
		if !pause(ctx, seconds(c.ConnectPollS)) {
			return core.Errorf(core.KindTimeout, "", "Timed out connecting to sandbox %s after %gs: %w", i.id, limit.Seconds(), err)
		}
	}
}

// furnish puts into a new sandbox what its spec wants to find there.
func (i *instance) furnish(ctx context.Context, spec core.Spec) error {
	if spec.Workdir != "" {
		// The daemon refuses commands whose directory does not exist.
		if err := i.makeFolder(ctx, spec.Workdir); err != nil {
			if ctx.Err() != nil {
				return err
			}
			quietly(ctx, "the sandbox's workdir could not be made", err)
		}
	}
	for _, f := range spec.Files {
		if err := i.writeFile(ctx, f); err != nil {
			return fmt.Errorf("write the spec's file %s: %w", f.Path, err)
		}
	}
	return nil
}

func (i *instance) makeFolder(ctx context.Context, name string) error {
	if isPattern(name) {
		return i.script(ctx, `mkdir -p -- "$1"`, name)
	}
	_, err := i.ask(ctx, call{method: http.MethodPost, json: map[string]map[string]any{name: {}}}, "/directories", nil)
	return err
}

// discard removes what a failed start made, also when its caller has gone.
func (i *instance) discard(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	defer i.end()
	if err := i.remove(ctx); err != nil {
		return fmt.Errorf("clean up sandbox %s: %w", i.id, err)
	}
	return nil
}
