// Package opensandbox makes sandboxes on an OpenSandbox server. The server's REST
// service makes, pauses and ends them; commands, files and terminals go to a
// daemon inside each, execd, through the server or directly.
//
// What the daemon promises is less than what our own agent does, so this package
// adds: a stream that was cut is never taken for success, a command that may have
// run is never sent twice, and a process's last output is not lost to its exit.
package opensandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// providerName is what the provider is registered as.
const providerName = "opensandbox"

// Provider makes sandboxes on one OpenSandbox server.
type Provider struct {
	cfg  config
	rest *restClient
	held heldSessions

	// life ends with the provider; what works in the background does so in tasks.
	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup
	mu    sync.Mutex // guards closed, so that no task is added once they are waited for
	done  bool
}

// Statically checked: what the provider can do beyond the minimum.
var (
	_ core.Factory          = New
	_ core.Connector        = (*Provider)(nil)
	_ core.Pauser           = (*instance)(nil)
	_ core.EndpointResolver = (*instance)(nil)
	_ core.PTYOpener        = (*instance)(nil)
	_ core.PTYAttacher      = (*instance)(nil)
	_ core.DefaultsKeeper   = (*instance)(nil)
)

// New makes a provider from its configuration block. It contacts no server.
func New(raw json.RawMessage) (core.Provider, error) { return newProvider(raw) }

func newProvider(raw json.RawMessage) (*Provider, error) {
	cfg, err := loadConfig(raw)
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, rest: newRestClient(cfg.Connection)}
	p.life, p.end = context.WithCancel(context.Background())
	return p, nil
}

// Name implements core.Provider.
func (p *Provider) Name() string { return providerName }

// Close implements core.Provider: it ends renewals and other background work, and
// closes the connections. Sandboxes live on until their time to live is over.
func (p *Provider) Close(ctx context.Context) error {
	p.mu.Lock()
	p.done = true
	p.mu.Unlock()
	p.end()
	over := make(chan struct{})
	go func() {
		p.tasks.Wait()
		close(over)
	}()
	defer p.rest.close()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return core.Errorf(core.KindCanceled, "close", "gave up waiting for background work to end: %w", context.Cause(ctx))
	}
}

// background runs a task that ends with the provider at the latest. It is false when the provider has been closed.
func (p *Provider) background(task func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done {
		return false
	}
	p.tasks.Go(func() { task(p.life) })
	return true
}

// quietly notes an error that has no caller to go to.
func quietly(ctx context.Context, what string, err error) {
	if err != nil {
		slog.WarnContext(ctx, what, "provider", providerName, "error", err.Error())
	}
}

// pause waits; false when the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// bounded is a context with a limit of its own, 0 for none, whose cause says what was waited for.
func bounded(ctx context.Context, limit time.Duration, what string) (context.Context, context.CancelFunc) {
	if limit <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, core.Errorf(core.KindTimeout, "", "Timed out %s after %gs", what, limit.Seconds()))
}

// canceled is the error of an operation whose caller gave up.
func canceled(ctx context.Context, op string) error {
	return &core.Error{Kind: core.KindCanceled, Op: op, Err: fmt.Errorf("canceled: %w", context.Cause(ctx))}
}
