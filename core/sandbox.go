package core

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Sandbox is the life of one sandbox over a Provider: it guards what may be
// called when, holds the defaults of commands, and makes stopping safe to repeat
// and to call from many goroutines. It is safe for concurrent use.
type Sandbox struct {
	provider Provider
	spec     Spec
	ledger   *Ledger // nil: this process's use of it is not noted

	// mu guards all below. It is never held during a call to the provider.
	mu       sync.Mutex
	state    state
	inst     Instance
	borrowed bool // connected to: ending it is its creator's business unless asked
	defaults Defaults
	kept     Defaults           // those that the instance was told of last
	starting context.CancelFunc // ends a start that is under way
	started  chan struct{}      // closed when that start is over
	stopping *stopCall          // the stop under way

	terminals terminals // has a lock of its own
}

// state only moves forward, but for a failed stop, which returns to running.
type state int

const (
	stateNew state = iota
	stateStarting
	stateRunning
	stateStopping
	stateStopped
	stateDetached
)

// stopCall is one attempt to stop, joined by everybody who asks meanwhile.
type stopCall struct {
	done chan struct{}
	err  error
}

// stopTimeout bounds one attempt to stop, also when its callers have gone.
const stopTimeout = 60 * time.Second

// NewSandbox prepares a sandbox; nothing runs until Start.
func NewSandbox(p Provider, spec Spec, options ...SandboxOption) *Sandbox {
	s := &Sandbox{provider: p, spec: spec, defaults: Defaults{Workdir: spec.Workdir}}
	for _, o := range options {
		o(s)
	}
	return s
}

// Connect takes up a sandbox that Serialize described, here or in another process.
func Connect(ctx context.Context, p Provider, descriptor map[string]any, options ...SandboxOption) (*Sandbox, error) {
	c, ok := p.(Connector)
	if !ok {
		return nil, Errorf(KindNotSupported, "connect", "provider %s can't connect to a sandbox of another process", p.Name())
	}
	inst, defaults, err := c.Connect(ctx, descriptor)
	if err != nil {
		return nil, WithSandbox(err, KindSandbox, "connect", p.Name(), "")
	}
	s := &Sandbox{provider: p, state: stateRunning, inst: inst, borrowed: true, defaults: defaults, kept: defaults}
	for _, o := range options {
		o(s)
	}
	s.ledger.connected(p, inst.ID())
	return s, nil
}

// Start makes the sandbox and writes its files. When it fails, or ctx ends, or
// Stop is called meanwhile, nothing is left running. It can be tried once.
func (s *Sandbox) Start(ctx context.Context) error {
	if err := s.spec.Validate(); err != nil {
		return WithSandbox(err, KindInvalid, "create", s.provider.Name(), "")
	}
	s.mu.Lock()
	if s.state != stateNew {
		state := s.state
		s.mu.Unlock()
		if state == stateStarting || state == stateRunning {
			return Errorf(KindConflict, "start", "the sandbox has already been started")
		}
		return Errorf(KindClosed, "start", "the sandbox has been stopped; make a new one")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	s.state, s.starting, s.started = stateStarting, cancel, over
	s.mu.Unlock()

	inst, err := s.provider.Create(ctx, s.spec)
	if err == nil {
		s.ledger.started(s.provider, inst.ID(), s.spec.TTL)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(over)
	if err != nil {
		s.state = stateStopped
		return WithSandbox(err, KindCreate, "create", s.provider.Name(), "")
	}
	s.inst, s.state = inst, stateRunning
	s.kept = Defaults{Workdir: s.spec.Workdir} // as the provider found them in the spec
	return nil
}

// ID is the sandbox's id, "" before it was started.
func (s *Sandbox) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inst == nil {
		return ""
	}
	return s.inst.ID()
}

// Exec runs one command with the sandbox's defaults; see Instance.Exec.
func (s *Sandbox) Exec(ctx context.Context, req ExecRequest, sink Sink) (ExecResult, error) {
	inst, defaults, err := s.running("exec")
	if err != nil {
		return ExecResult{}, err
	}
	if err := req.Validate(); err != nil {
		return ExecResult{}, WithSandbox(err, KindInvalid, "exec", s.provider.Name(), inst.ID())
	}
	if req.Cwd == "" {
		req.Cwd = defaults.Workdir
	}
	if req.User == "" {
		req.User = defaults.User
	}
	if req.Timeout == 0 {
		req.Timeout = s.defaultTimeout()
	}
	if sink == nil {
		sink = Discard
	}
	res, err := inst.Exec(ctx, req, sink)
	if err != nil {
		kind := KindSandbox
		if ctx.Err() != nil {
			kind = KindCanceled
		}
		return res, WithSandbox(err, kind, "exec", s.provider.Name(), inst.ID())
	}
	if res.ErrorType == ErrorTypeSandbox && res.ExitCode == NoExitCode && s.ended() {
		res.Reason = "the sandbox was stopped while the command ran"
	}
	return res, nil
}

// defaultTimeout bounds a command that gives no timeout of its own.
func (s *Sandbox) defaultTimeout() time.Duration {
	if d, ok := s.provider.(DefaultTimeouter); ok {
		return d.DefaultExecTimeout()
	}
	return DefaultExecTimeout
}

// Upload copies a local file into the sandbox.
func (s *Sandbox) Upload(ctx context.Context, localPath, remotePath string) error {
	inst, err := s.withDefaults(ctx, "upload")
	if err != nil {
		return err
	}
	if err = checkRemoteTarget(remotePath); err != nil {
		err = Errorf(KindInvalid, "upload", "upload %s: %w", localPath, err)
	} else {
		err = inst.Upload(ctx, localPath, remotePath)
	}
	return WithSandbox(err, KindSandbox, "upload", s.provider.Name(), inst.ID())
}

// Download copies a file of the sandbox to a local path.
func (s *Sandbox) Download(ctx context.Context, remotePath, localPath string) error {
	inst, err := s.withDefaults(ctx, "download")
	if err != nil {
		return err
	}
	return WithSandbox(inst.Download(ctx, remotePath, localPath), KindSandbox, "download", s.provider.Name(), inst.ID())
}

// withDefaults gives the instance after it was told of defaults that have changed.
func (s *Sandbox) withDefaults(ctx context.Context, op string) (Instance, error) {
	inst, d, err := s.running(op)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	told := s.kept == d
	s.mu.Unlock()
	k, ok := inst.(DefaultsKeeper)
	if told || !ok {
		return inst, nil
	}
	if err := k.KeepDefaults(ctx, d); err != nil {
		return nil, WithSandbox(err, KindSandbox, op, s.provider.Name(), inst.ID())
	}
	s.mu.Lock()
	s.kept = d
	s.mu.Unlock()
	return inst, nil
}

// Status is StatusUnknown before the start and StatusStopped after the stop; between them the backend is asked.
func (s *Sandbox) Status(ctx context.Context) (Status, error) {
	s.mu.Lock()
	st, inst := s.state, s.inst
	s.mu.Unlock()
	switch st {
	case stateNew, stateDetached:
		return StatusUnknown, nil
	case stateStarting:
		return StatusStarting, nil
	case stateStopped:
		return StatusStopped, nil
	}
	status, err := inst.Status(ctx)
	return status, WithSandbox(err, KindSandbox, "status", s.provider.Name(), inst.ID())
}

// Pause stops every process of the sandbox in place, Resume continues them.
// Open terminal sessions are detached meanwhile.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.onPauser(ctx, "pause", func(p Pauser, ctx context.Context) error {
		mine := s.terminals.suspend()
		err := p.Pause(ctx)
		if err != nil {
			s.terminals.reattach(ctx, mine) // others may wait for the end of a pause that goes on
		}
		return err
	})
}

// Resume continues a paused sandbox and attaches again the sessions that Pause detached.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.onPauser(ctx, "resume", func(p Pauser, ctx context.Context) error {
		err := p.Resume(ctx)
		if err == nil {
			s.terminals.reattach(ctx, s.terminals.suspended())
		}
		return err
	})
}

func (s *Sandbox) onPauser(ctx context.Context, op string, do func(Pauser, context.Context) error) error {
	inst, _, err := s.running(op)
	if err != nil {
		return err
	}
	p, ok := inst.(Pauser)
	if !ok {
		return Errorf(KindNotSupported, op, "provider %s does not support pause/resume", s.provider.Name())
	}
	return WithSandbox(do(p, ctx), KindSandbox, op, s.provider.Name(), inst.ID())
}

// Endpoint routes to a port that the spec declares.
func (s *Sandbox) Endpoint(ctx context.Context, port int) (Endpoint, error) {
	inst, _, err := s.running("endpoint")
	if err != nil {
		return Endpoint{}, err
	}
	r, ok := inst.(EndpointResolver)
	if !ok {
		return Endpoint{}, Errorf(KindNotSupported, "endpoint", "provider %s does not support service endpoints", s.provider.Name())
	}
	ep, err := r.Endpoint(ctx, port)
	return ep, WithSandbox(err, KindSandbox, "endpoint", s.provider.Name(), inst.ID())
}

// SetDefaultUser changes what later commands run as; "" is the image's user.
func (s *Sandbox) SetDefaultUser(user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defaults.User = user
}

// SetDefaultWorkdir changes where later commands run; "" is the spec's directory.
func (s *Sandbox) SetDefaultWorkdir(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dir == "" {
		dir = s.spec.Workdir
	}
	s.defaults.Workdir = dir
}

// Serialize describes the sandbox for Connect in another process.
func (s *Sandbox) Serialize(ctx context.Context, scope string) (map[string]any, error) {
	inst, defaults, err := s.running("serialize")
	if err != nil {
		return nil, err
	}
	c, ok := s.provider.(Connector)
	if !ok {
		return nil, Errorf(KindNotSupported, "serialize", "provider %s can't share a sandbox between processes", s.provider.Name())
	}
	d, err := c.Serialize(ctx, inst, scope, defaults)
	if err == nil {
		s.ledger.handedOver(s.provider, inst.ID(), true)
	}
	return d, WithSandbox(err, KindSandbox, "serialize", s.provider.Name(), inst.ID())
}

// Disconnect lets go of a sandbox that Connect took up; it lives on. Idempotent.
func (s *Sandbox) Disconnect() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state == stateDetached:
		return nil
	case !s.borrowed:
		return Errorf(KindConflict, "disconnect", "disconnect is valid only for a sandbox that was connected to; stop this one")
	case s.state == stateRunning:
		s.terminals.abandon(errors.New("the sandbox was disconnected"))
		s.inst.Detach()
		s.state = stateDetached
		s.ledger.handedOver(s.provider, s.inst.ID(), false)
	}
	return nil
}

// Stop ends the sandbox. It can be called at any time, any number of times and
// concurrently: calls join the attempt that is under way. A start under way is
// cancelled first. A failed attempt leaves the sandbox as it was; the next call
// tries again. When ctx ends Stop returns, and the attempt goes on, bounded.
func (s *Sandbox) Stop(ctx context.Context) error {
	for {
		s.mu.Lock()
		switch s.state {
		case stateNew:
			s.state = stateStopped
			s.mu.Unlock()
			return nil
		case stateStopped, stateDetached:
			s.mu.Unlock()
			return nil
		case stateStarting:
			s.starting()
			over := s.started
			s.mu.Unlock()
			select {
			case <-over:
				continue
			case <-ctx.Done():
				return Errorf(KindCanceled, "stop", "gave up waiting for a start to end: %w", context.Cause(ctx))
			}
		case stateRunning:
			call := &stopCall{done: make(chan struct{})}
			s.state, s.stopping = stateStopping, call
			go s.destroy(context.WithoutCancel(ctx), call)
		}
		call := s.stopping
		s.mu.Unlock()
		select {
		case <-call.done:
			return call.err
		case <-ctx.Done():
			return Errorf(KindCanceled, "stop", "gave up waiting, the stop goes on: %w", context.Cause(ctx))
		}
	}
}

// destroy makes one attempt to end the sandbox.
func (s *Sandbox) destroy(ctx context.Context, call *stopCall) {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	err := guard(func() error { return s.inst.Destroy(ctx) })
	if err == nil {
		s.terminals.abandon(errStopped)
		s.ledger.ended(s.provider, s.inst.ID())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer close(call.done)
	if err != nil {
		s.state = stateRunning
		call.err = WithSandbox(err, KindSandbox, "stop", s.provider.Name(), s.inst.ID())
		return
	}
	s.inst.Detach()
	s.state = stateStopped
}

// guard turns a panic of a provider into an error, so that those who wait for the outcome get one.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = Errorf(KindInternal, "", "panic in the provider: %v", r)
		}
	}()
	return f()
}

// running gives the instance, or the error that says why there is none.
func (s *Sandbox) running(op string) (Instance, Defaults, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case stateRunning, stateStopping:
		return s.inst, s.defaults, nil
	case stateNew, stateStarting:
		return nil, Defaults{}, Errorf(KindNotStarted, op, "the sandbox has not been started; call start first")
	default:
		return nil, Defaults{}, Errorf(KindClosed, op, "the sandbox has been stopped")
	}
}

func (s *Sandbox) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == stateStopping || s.state == stateStopped
}

// Provider is what the sandbox runs on.
func (s *Sandbox) Provider() Provider { return s.provider }

// String names the sandbox in messages.
func (s *Sandbox) String() string {
	return fmt.Sprintf("%s sandbox %s", s.provider.Name(), s.ID())
}

// IsCanceled tells whether an error means that the caller gave up.
func IsCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || KindOf(err) == KindCanceled
}
