package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/docker/go-connections/nat"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// runner works inside a container, by way of an agent or of the engine.
type runner interface {
	exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error)
	upload(ctx context.Context, localPath, remotePath string) error
	download(ctx context.Context, remotePath, localPath string) error
	// writeFiles writes the spec's files, with mode 0644.
	writeFiles(ctx context.Context, files []core.File) error
	// keepDefaults replaces what decides whom uploads belong to and where relative paths begin.
	keepDefaults(ctx context.Context, d core.Defaults) error
	// handover lets others take the sandbox up, with these defaults.
	handover(ctx context.Context, d core.Defaults) error
	close()
}

// instance is one sandbox: a container and the way into it.
type instance struct {
	p       *Provider
	name    string // of the container, and the sandbox's id
	image   string
	ttl     time.Duration
	created time.Time

	host *agent.HostDir // nil without an agent
	run  runner         // nil until the way in is open

	sidecars map[string]*instance // by their names in the spec; not changed once the sandbox is ready
}

// ID implements core.Instance.
func (i *instance) ID() string { return i.name }

// Exec implements core.Instance.
func (i *instance) Exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	if err := req.Validate(); err != nil {
		return core.ExecResult{}, err
	}
	if ctx.Err() != nil {
		return core.ExecResult{}, core.Errorf(core.KindCanceled, "exec", "canceled before it began: %w", context.Cause(ctx))
	}
	if req.User == "root" {
		req.User = "0" // also where the image has no list of users
	}
	if req.Timeout == 0 {
		req.Timeout = i.p.DefaultExecTimeout()
	}
	timeout := req.Timeout
	release, waited, err := i.p.slot(ctx, timeout)
	if err != nil {
		return core.ExecResult{}, err
	}
	if release == nil {
		return core.TimedOut(providerName, timeout), nil
	}
	defer release()
	if timeout > 0 {
		req.Timeout = max(timeout-waited, time.Millisecond)
	}
	res, err := i.run.exec(ctx, req, sink)
	if res.ErrorType == core.ErrorTypeTimeout && waited > time.Millisecond {
		res = core.TimedOut(providerName, timeout)
	}
	return res, err
}

// slot waits for a command's turn, at most for its timeout. release is nil when that passed.
func (p *Provider) slot(ctx context.Context, timeout time.Duration) (release func(), waited time.Duration, err error) {
	p.mu.Lock()
	slots := p.slots
	p.mu.Unlock()
	if slots == nil {
		return func() {}, 0, nil
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, 0, nil
	default:
	}
	begun := time.Now()
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, time.Since(begun), nil
	case <-late:
		return nil, 0, nil
	case <-ctx.Done():
		return nil, 0, core.Errorf(core.KindCanceled, "exec", "canceled while the command waited for its turn: %w", context.Cause(ctx))
	}
}

// Upload implements core.Instance.
func (i *instance) Upload(ctx context.Context, localPath, remotePath string) error {
	return i.run.upload(ctx, localPath, remotePath)
}

// Download implements core.Instance.
func (i *instance) Download(ctx context.Context, remotePath, localPath string) error {
	return i.run.download(ctx, remotePath, localPath)
}

// Status implements core.Instance. That the engine can't tell is StatusUnknown, not an error.
func (i *instance) Status(ctx context.Context) (core.Status, error) {
	v := i.diagnose(ctx)
	if ctx.Err() != nil {
		return core.StatusUnknown, core.Errorf(core.KindCanceled, "status", "canceled: %w", context.Cause(ctx))
	}
	return v.status, nil
}

// Destroy implements core.Instance.
func (i *instance) Destroy(ctx context.Context) error {
	return i.together(func(one *instance) error { return one.destroy(ctx) })
}

// destroy ends one container.
func (i *instance) destroy(ctx context.Context) error {
	err := i.remove(ctx)
	if err != nil {
		return err
	}
	i.detach()
	if i.host != nil {
		return i.host.Remove()
	}
	return nil
}

// remove returns when the container is gone.
func (i *instance) remove(ctx context.Context) error {
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 500*time.Millisecond) {
		err := i.p.engine.ContainerRemove(ctx, i.name)
		switch {
		case notFound(err):
			return nil
		case err != nil && ctx.Err() != nil:
			return core.Errorf(core.KindTimeout, "stop", "rm -f of container %s timed out: %w", i.name, err)
		case err != nil && !conflict(err):
			return core.Errorf(core.KindSandbox, "stop", "rm -f failed for container %s: %w", i.name, i.p.explained(ctx, err))
		}
		// Removed; or its removal is under way, by itself or by somebody else: wait for it.
		if err == nil {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return core.Errorf(core.KindTimeout, "stop", "rm -f of container %s timed out: %w", i.name, errors.Join(context.Cause(ctx), err))
		}
	}
}

// Detach implements core.Instance.
func (i *instance) Detach() {
	_ = i.together(func(one *instance) error {
		one.detach()
		return nil
	})
}

// detach lets go of one container.
func (i *instance) detach() {
	if i.run != nil {
		i.run.close()
	}
}

// Pause implements core.Pauser.
func (i *instance) Pause(ctx context.Context) error {
	return i.together(func(one *instance) error {
		err := one.p.engine.ContainerPause(ctx, one.name)
		return one.pauseError(ctx, "pause", core.StatusPaused, err)
	})
}

// Resume implements core.Pauser.
func (i *instance) Resume(ctx context.Context) error {
	return i.together(func(one *instance) error {
		err := one.p.engine.ContainerUnpause(ctx, one.name)
		return one.pauseError(ctx, "resume", core.StatusRunning, err)
	})
}

// pauseError forgives an engine that refuses because the container is as wanted already.
func (i *instance) pauseError(ctx context.Context, op string, wanted core.Status, err error) error {
	if err == nil {
		return nil
	}
	v := i.diagnose(ctx)
	if v.status == wanted {
		return nil
	}
	if v.reason != "" {
		return core.Errorf(core.KindSandbox, op, "%s: %w", v.reason, err)
	}
	return core.Errorf(core.KindSandbox, op, "%w", err)
}

// Endpoint implements core.EndpointResolver.
func (i *instance) Endpoint(ctx context.Context, port int) (core.Endpoint, error) {
	c, err := i.p.engine.ContainerInspect(ctx, i.name)
	if err != nil {
		if ctx.Err() != nil {
			return core.Endpoint{}, core.Errorf(core.KindTimeout, "endpoint", "asking the engine for port %d timed out: %w", port, context.Cause(ctx))
		}
		return core.Endpoint{}, core.Errorf(core.KindSandbox, "endpoint", "port %d: %s (%w)", port, i.diagnose(ctx).reason, err)
	}
	key := nat.Port(strconv.Itoa(port) + "/tcp")
	if _, ok := c.HostConfig.PortBindings[key]; !ok {
		var declared []string
		for p := range c.HostConfig.PortBindings {
			declared = append(declared, p.Port())
		}
		slices.Sort(declared)
		return core.Endpoint{}, core.Errorf(core.KindInvalid, "endpoint", "port %d was not declared in the spec's ports; declared: %v", port, declared)
	}
	var bindings []nat.PortBinding
	if c.NetworkSettings != nil {
		bindings = c.NetworkSettings.Ports[key]
	}
	return endpointURL(bindings, i.p.cfg.Create.PublishHost, port)
}

// endpointURL chooses among the places where the engine publishes a port.
func endpointURL(bindings []nat.PortBinding, publishHost string, port int) (core.Endpoint, error) {
	if len(bindings) == 0 {
		return core.Endpoint{}, core.Errorf(core.KindSandbox, "endpoint", "port %d has no host binding; does the container still run, and has it a network?", port)
	}
	b := bindings[0]
	if at := slices.IndexFunc(bindings, func(b nat.PortBinding) bool { return b.HostIP == "127.0.0.1" }); at >= 0 {
		b = bindings[at]
	}
	number, err := strconv.Atoi(b.HostPort)
	if err != nil || number < 1 || number > 65535 {
		return core.Endpoint{}, core.Errorf(core.KindSandbox, "endpoint", "port %d has an invalid host binding %q", port, b.HostIP+":"+b.HostPort)
	}
	host := b.HostIP
	if host == "" {
		host = publishHost
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return core.Endpoint{}, core.Errorf(core.KindSandbox, "endpoint", "port %d has an invalid host binding %q", port, b.HostIP+":"+b.HostPort)
	}
	if addr.IsUnspecified() {
		// Published everywhere; that is no address to connect to.
		host = publishHost
	}
	return core.Endpoint{URL: fmt.Sprintf("http://%s", net.JoinHostPort(host, b.HostPort))}, nil
}
