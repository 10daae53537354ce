// Package docker makes sandboxes of containers. Commands, files and terminals
// go through an agent that runs inside as process 1 and is reached over a socket
// in a mounted directory or, where the engine is on another machine, over the
// stream of one engine exec. Where no agent can run, each command is an engine exec.
package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// providerName is what the provider is registered as.
const providerName = "docker"

// Provider makes sandboxes on one container engine.
type Provider struct {
	cfg    config
	args   execArgs // from exec.extra_exec_args
	target target
	engine engine
	slots  chan struct{} // one per command that may run at once; nil: no limit

	pulls    flight[struct{}]
	versions flight[engineVersion]
	shells   flight[string]
	volumes  flight[string]

	// mu guards what was found out about the engine so far.
	mu       sync.Mutex
	version  *engineVersion
	shellOf  map[string]string // by image id
	volumeOf map[string]string // by architecture
	way      way               // the first one to try
	proven   bool              // way has worked, so others need not be tried
	warned   map[string]bool   // what has been said once
}

// Statically checked: what a docker provider can do beyond the minimum.
var (
	_ core.Factory           = New
	_ core.Connector         = (*Provider)(nil)
	_ core.DefaultTimeouter  = (*Provider)(nil)
	_ core.HandoverTimeouter = (*Provider)(nil)
	_ core.OutputLimiter     = (*Provider)(nil)
	_ core.Located           = (*Provider)(nil)
	_ core.Janitor           = (*Provider)(nil)
	_ core.Examiner          = (*Provider)(nil)
	_ core.Pauser            = (*instance)(nil)
	_ core.EndpointResolver  = (*instance)(nil)
	_ core.Sidecars          = (*instance)(nil)
)

// New makes a provider from its configuration block. It contacts no engine:
// one that is absent is an error of the first Create.
func New(raw json.RawMessage) (core.Provider, error) {
	return newProvider(raw)
}

func newProvider(raw json.RawMessage) (*Provider, error) {
	cfg, err := loadConfig(raw)
	if err != nil {
		return nil, err
	}
	p := &Provider{cfg: cfg, shellOf: map[string]string{}, volumeOf: map[string]string{}, warned: map[string]bool{}}
	p.args, _ = parseExecArgs(cfg.Exec.ExtraExecArgs) // checked with the configuration
	if p.target, err = findTarget(cfg.Connection, os.Getenv); err != nil {
		return nil, &core.Error{Kind: core.KindInvalid, Provider: providerName, Err: err}
	}
	if p.engine, err = newEngine(p.target); err != nil {
		return nil, &core.Error{Kind: core.KindInvalid, Provider: providerName, Err: fmt.Errorf("docker host %q: %w", withoutSecrets(p.target.host), err)}
	}
	p.way = p.ways()[0]
	switch {
	case cfg.Exec.Concurrency != nil:
		p.slots = make(chan struct{}, *cfg.Exec.Concurrency)
	case p.way == wayEngine:
		p.slots = make(chan struct{}, engineConcurrency)
	}
	return p, nil
}

// ways are those that the configuration allows, best first.
func (p *Provider) ways() []way {
	if p.cfg.Exec.Mode == modeEngine || len(p.cfg.Exec.ExtraExecArgs) > 0 {
		return []way{wayEngine}
	}
	ways := []way{waySocket, wayStream}
	switch p.cfg.Create.AgentTransport {
	case transportSocket:
		ways = []way{waySocket}
	case transportStream:
		ways = []way{wayStream}
	}
	if p.cfg.Exec.Mode == modeAuto {
		ways = append(ways, wayEngine)
	}
	return ways
}

// Name implements core.Provider.
func (p *Provider) Name() string { return providerName }

// DefaultExecTimeout implements core.DefaultTimeouter.
func (p *Provider) DefaultExecTimeout() time.Duration {
	if p.cfg.Exec.DefaultTimeoutS == nil {
		return core.Forever
	}
	return seconds(*p.cfg.Exec.DefaultTimeoutS)
}

// HandoverTimeout implements core.HandoverTimeouter.
func (p *Provider) HandoverTimeout() time.Duration { return seconds(p.cfg.Create.HandoverTimeoutS) }

// MaxOutputBytes implements core.OutputLimiter.
func (p *Provider) MaxOutputBytes() int64 { return p.cfg.Exec.MaxOutputBytes }

// Close implements core.Provider.
func (p *Provider) Close(context.Context) error { return p.engine.Close() }

// versionTimeout is how long an engine may take to say what it is. It needs no work for that.
const versionTimeout = 15 * time.Second

// engineVersion asks the engine once what it is. It comes before all else that is
// asked of an engine: it also settles the protocol's version.
func (p *Provider) engineVersion(ctx context.Context) (engineVersion, error) {
	p.mu.Lock()
	known := p.version
	p.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	return p.versions.do(ctx, "", func(ctx context.Context) (engineVersion, error) {
		ctx, cancel := context.WithTimeout(ctx, versionTimeout)
		defer cancel()
		v, err := p.engine.Version(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return v, fmt.Errorf("the Docker engine at %s (from %s) does not answer (waited %gs): is it overloaded or hanging? try docker info", withoutSecrets(p.target.host), p.target.origin, versionTimeout.Seconds())
		case err != nil:
			return v, p.explained(ctx, err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.version = &v
		return v, nil
	})
}

// explained adds to a lost engine what is wrong with the way to it.
func (p *Provider) explained(ctx context.Context, err error) error {
	if err == nil || !unreachable(err) {
		return err
	}
	return p.target.explain(ctx, err)
}

// firstWays are the ways to try now, given what has worked before.
func (p *Provider) firstWays() (ways []way, proven bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.ways() {
		if w >= p.way {
			ways = append(ways, w)
		}
	}
	if p.proven {
		ways = ways[:1]
	}
	return ways, p.proven
}

// settle remembers a way that worked, for the sandboxes to come.
func (p *Provider) settle(w way) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.proven || w > p.way {
		p.way, p.proven = w, true
	}
}

// oomScore is what containers with an agent are started with.
func (p *Provider) oomScore() int {
	if _, refused := unscored.Load(p.target.host); refused {
		return 0
	}
	return agentOOMScore
}

// warnOnce says something that would else be said for every sandbox.
func (p *Provider) warnOnce(key, msg string, args ...any) {
	p.mu.Lock()
	said := p.warned[key]
	p.warned[key] = true
	p.mu.Unlock()
	if !said {
		slog.Warn(msg, append([]any{"provider", providerName}, args...)...)
	}
}
