package opensandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// tokenVariable is how a spec's environment gives the daemon a token that every request has to carry.
const tokenVariable = "EXECD_ACCESS_TOKEN"

// instance is one sandbox.
type instance struct {
	p     *Provider
	id    string
	token string // "" when the daemon wants none

	// life ends when the sandbox is let go of; renewal is what prolongs the sandbox meanwhile, nil for nothing.
	life     context.Context
	end      context.CancelFunc
	renewal  *renewal
	starting atomic.Bool // it is being made

	// mu guards all below.
	mu       sync.Mutex
	at       *endpoint // of the daemon; nil: not known
	paused   bool      // by us
	renewErr error
	kept     core.Defaults
	hasNote  bool  // defaults have been written into the sandbox
	oomKills int64 // as last counted; -1: not known
}

func (p *Provider) newInstance(id string) *instance {
	i := &instance{p: p, id: id, oomKills: -1}
	i.life, i.end = context.WithCancel(p.life)
	return i
}

// ID implements core.Instance.
func (i *instance) ID() string { return i.id }

// daemon gives where the sandbox's daemon is reached.
func (i *instance) daemon(ctx context.Context) (endpoint, error) {
	i.mu.Lock()
	known := i.at
	i.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	return i.locate(ctx)
}

// locate asks for the daemon's place anew.
func (i *instance) locate(ctx context.Context) (endpoint, error) {
	at, err := i.p.rest.resolve(ctx, &i.p.cfg.Connection, i.id, daemonPort)
	if err != nil {
		return at, err
	}
	if i.token != "" && at.header.Get(headerToken) == "" {
		at.header.Set(headerToken, i.token)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.at = &at
	return at, nil
}

func (i *instance) forgetDaemon() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.at = nil
}

// toDaemon completes a request to the daemon.
func (i *instance) toDaemon(ctx context.Context, c call, path string) (call, error) {
	at, err := i.daemon(ctx)
	if err != nil {
		return c, err
	}
	c.url = at.url + path
	header := at.header.Clone()
	for k, v := range c.header {
		header[k] = v
	}
	c.header = header
	return c, nil
}

// ask makes a request to the daemon; see restClient.do.
func (i *instance) ask(ctx context.Context, c call, path string, out any) (http.Header, error) {
	c, err := i.toDaemon(ctx, c, path)
	if err != nil {
		return nil, err
	}
	header, err := i.p.rest.do(ctx, c, out)
	return header, i.heard(err)
}

// heard is told what became of each request to the daemon. Where nobody is any more nobody is looked for again: another
// process may have paused the sandbox, and resumed it elsewhere.
func (i *instance) heard(err error) error {
	var t *transportError
	if errors.As(err, &t) && t.unsent && !i.starting.Load() {
		i.forgetDaemon()
	}
	return err
}

// ping asks whether the daemon answers.
func (i *instance) ping(ctx context.Context) error {
	_, err := i.ask(ctx, call{method: http.MethodGet}, "/ping", nil)
	return err
}

// pingInterval is how often a daemon that does not answer yet is asked again.
const pingInterval = 200 * time.Millisecond

// lookEvery is after how many pings without an answer the server is asked whether the sandbox lives.
const lookEvery = 10

// awaitDaemon waits until the daemon answers. Only refused credentials and the sandbox's death are final.
func (i *instance) awaitDaemon(ctx context.Context, every time.Duration) error {
	for n := 1; ; n++ {
		err := i.ping(ctx)
		if err == nil {
			i.straighten(ctx)
			return nil
		}
		if s := statusOf(err); s == http.StatusUnauthorized || s == http.StatusForbidden {
			return err
		}
		if n%lookEvery == 0 {
			if dead := i.verdict(ctx); dead != nil {
				return dead
			}
		}
		if !pause(ctx, every) {
			return fmt.Errorf("the sandbox's daemon does not answer (%w); last: %w", context.Cause(ctx), err)
		}
	}
}

// awaitEndpoint waits until the server knows where the daemon is reached.
func (i *instance) awaitEndpoint(ctx context.Context) error {
	for {
		_, err := i.locate(ctx)
		if err == nil || codeOf(err) != codeNoPodIP {
			return err
		}
		if !pause(ctx, pingInterval) {
			return fmt.Errorf("the sandbox has no address (%w); last: %w", context.Cause(ctx), err)
		}
	}
}

// ops is how requests about the sandbox are repeated.
func (i *instance) ops() backoff {
	o := &i.p.cfg.Operations
	return backoff{retries: o.Retries, first: seconds(o.RetryDelayS), limit: seconds(o.RetryMaxDelayS), lateIsFinal: true}
}

// healthy is the error of a sandbox whose life could not be prolonged.
func (i *instance) healthy() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.renewErr
}

// Status implements core.Instance.
func (i *instance) Status(ctx context.Context) (core.Status, error) {
	if err := i.healthy(); err != nil {
		return core.StatusUnknown, err
	}
	info, err := i.info(ctx)
	if sandboxGone(err) {
		return core.StatusStopped, nil
	}
	if err != nil {
		return core.StatusUnknown, failed(ctx, "status", i.id, "asking the server for the sandbox", err)
	}
	return info.Status.status(), nil
}

func (i *instance) info(ctx context.Context) (info sandboxInfo, err error) {
	err = i.ops().retry(ctx, "asking for sandbox "+i.id, func(ctx context.Context) error {
		info, err = i.p.rest.getSandbox(ctx, i.id, 0)
		return err
	})
	return info, err
}

// Destroy implements core.Instance. What could not be prolonged is ended all the same, and then told.
func (i *instance) Destroy(ctx context.Context) error {
	i.stopRenewing()
	if err := i.remove(ctx); err != nil {
		return failed(ctx, "stop", i.id, "deleting the sandbox", err)
	}
	i.end()
	i.mu.Lock()
	defer i.mu.Unlock()
	err := i.renewErr
	i.renewErr = nil // it is told once: there is nothing left that could be prolonged
	return err
}

func (i *instance) remove(ctx context.Context) error {
	limit := orSeconds(i.p.cfg.Operations.CloseTimeoutS, -1)
	return i.ops().retry(ctx, "deleting sandbox "+i.id, func(ctx context.Context) error {
		return i.p.rest.deleteSandbox(ctx, i.id, limit)
	})
}

// Detach implements core.Instance.
func (i *instance) Detach() {
	i.stopRenewing()
	i.end()
}

// Endpoint implements core.EndpointResolver.
func (i *instance) Endpoint(ctx context.Context, port int) (core.Endpoint, error) {
	if err := i.healthy(); err != nil {
		return core.Endpoint{}, err
	}
	var at endpoint
	err := i.ops().retry(ctx, "resolving a port of sandbox "+i.id, func(ctx context.Context) (err error) {
		at, err = i.p.rest.resolve(ctx, &i.p.cfg.Connection, i.id, port)
		return err
	})
	if err != nil {
		return core.Endpoint{}, failed(ctx, "endpoint", i.id, fmt.Sprintf("resolving port %d", port), err)
	}
	return at.public(), nil
}

// DirectEndpoint is where a port of a sandbox is reached without the server, as its neighbours do.
func (p *Provider) DirectEndpoint(ctx context.Context, id string, port int) (core.Endpoint, error) {
	direct := p.cfg.Connection
	direct.UseServerProxy = false
	i := &instance{p: p, id: id}
	var at endpoint
	err := i.ops().retry(ctx, "resolving a port of sandbox "+id, func(ctx context.Context) (err error) {
		at, err = p.rest.resolve(ctx, &direct, id, port)
		return err
	})
	if err != nil {
		return core.Endpoint{}, failed(ctx, "endpoint", id, fmt.Sprintf("resolving port %d", port), err)
	}
	return at.public(), nil
}

// public is a place as callers get it.
func (e endpoint) public() core.Endpoint {
	p := core.Endpoint{URL: e.url, Headers: map[string]string{}}
	for k := range e.header {
		p.Headers[k] = e.header.Get(k)
	}
	return p
}

// KeepDefaults implements core.DefaultsKeeper.
func (i *instance) KeepDefaults(_ context.Context, d core.Defaults) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.kept = d
	return nil
}

func (i *instance) defaults() core.Defaults {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.kept
}
