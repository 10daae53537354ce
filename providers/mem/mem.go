package mem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const name = "mem"

// Config is the provider's configuration block.
type Config struct {
	DefaultTimeoutS float64 `json:"default_timeout_s" doc:"bound of a command that gives none, in seconds"`
	MaxOutputBytes  int64   `json:"max_output_bytes" doc:"how much of each output is kept; 0 keeps all"`
	CreateDelayS    float64 `json:"create_delay_s" doc:"how long making a sandbox takes, in seconds"`
	FailCreate      string  `json:"fail_create" doc:"kind of the error that making a sandbox ends in, for example create or verification"`
}

// world is what the providers of one factory share, so that one can connect to another's sandboxes.
type world struct {
	mu        sync.Mutex
	instances map[string]*instance
	next      int
}

// NewFactory gives a factory whose providers know each other's sandboxes.
func NewFactory() core.Factory {
	w := &world{instances: map[string]*instance{}}
	return func(raw json.RawMessage) (core.Provider, error) {
		cfg := Config{DefaultTimeoutS: core.DefaultExecTimeout.Seconds()}
		if err := core.DecodeConfig(raw, &cfg); err != nil {
			return nil, err
		}
		if cfg.DefaultTimeoutS <= 0 || cfg.CreateDelayS < 0 || cfg.MaxOutputBytes < 0 {
			return nil, core.Errorf(core.KindInvalid, "", "default_timeout_s must be positive, create_delay_s and max_output_bytes not negative")
		}
		return &provider{cfg: cfg, world: w}, nil
	}
}

type provider struct {
	cfg    Config
	world  *world
	closed atomic.Bool
}

func (*provider) Name() string { return name }

func (p *provider) DefaultExecTimeout() time.Duration {
	return time.Duration(p.cfg.DefaultTimeoutS * float64(time.Second))
}

func (p *provider) MaxOutputBytes() int64 { return p.cfg.MaxOutputBytes }

func (p *provider) Create(ctx context.Context, spec core.Spec) (core.Instance, error) {
	if p.closed.Load() {
		return nil, core.Errorf(core.KindClosed, "create", "the provider has been closed")
	}
	if err := pause(ctx, p.cfg.CreateDelayS); err != nil {
		return nil, err
	}
	if p.cfg.FailCreate != "" {
		return nil, core.Errorf(core.Kind(p.cfg.FailCreate), "create", "configured to fail")
	}
	in := &instance{world: p.world, spec: spec, files: map[string]file{}}
	in.life, in.end = context.WithCancelCause(context.Background())
	for _, f := range spec.Files {
		in.files[in.abs(f.Path, spec.Workdir)] = file{data: []byte(f.Content), mode: 0o644}
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	p.world.next++
	in.id = fmt.Sprintf("mem-%d", p.world.next)
	p.world.instances[in.id] = in
	return in, nil
}

func (p *provider) Close(context.Context) error {
	p.closed.Store(true)
	return nil
}

func (p *provider) Serialize(_ context.Context, in core.Instance, _ string, d core.Defaults) (map[string]any, error) {
	return map[string]any{"provider": name, "sandbox_id": in.ID(), "user": d.User, "workdir": d.Workdir}, nil
}

func (p *provider) Connect(_ context.Context, d map[string]any) (core.Instance, core.Defaults, error) {
	id, _ := d["sandbox_id"].(string)
	user, _ := d["user"].(string)
	workdir, _ := d["workdir"].(string)
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	in, ok := p.world.instances[id]
	if !ok {
		return nil, core.Defaults{}, core.Errorf(core.KindNotFound, "connect", "no sandbox %q in this process", id)
	}
	return in, core.Defaults{User: user, Workdir: workdir}, nil
}

type file struct {
	data []byte
	mode os.FileMode
}

var errDestroyed = errors.New("the sandbox was destroyed")

// instance is one sandbox.
type instance struct {
	world *world
	id    string
	spec  core.Spec
	life  context.Context // ends with the sandbox
	end   context.CancelCauseFunc

	mu     sync.Mutex
	files  map[string]file
	paused bool
}

func (in *instance) ID() string { return in.id }

// abs makes a path of the sandbox absolute.
func (in *instance) abs(p, cwd string) string {
	if cwd == "" {
		cwd = "/"
	}
	if !path.IsAbs(p) {
		p = path.Join(cwd, p)
	}
	return path.Clean(p)
}

func (in *instance) Exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	if in.life.Err() != nil {
		return core.RuntimeFailure("the sandbox has ended"), nil
	}
	run, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(in.life, func() { stop(errDestroyed) })()
	if req.Timeout > 0 {
		defer time.AfterFunc(req.Timeout, func() { stop(context.DeadlineExceeded) }).Stop()
	}
	code, err := in.run(run, &req, sink)
	switch cause := context.Cause(run); {
	case err == nil:
		return core.ExecResult{ExitCode: code}, nil
	case ctx.Err() != nil:
		return core.ExecResult{}, ctx.Err()
	case errors.Is(cause, context.DeadlineExceeded):
		return core.TimedOut(name, req.Timeout), nil
	case errors.Is(cause, errDestroyed):
		return core.RuntimeFailure(errDestroyed.Error()), nil
	default:
		return core.ExecResult{}, err
	}
}

func (in *instance) Upload(_ context.Context, localPath, remotePath string) error {
	data, err := os.ReadFile(localPath)
	if err != nil {
		return core.Errorf(kindOf(err), "upload", "read %s: %w", localPath, err)
	}
	st, err := os.Stat(localPath)
	if err != nil {
		return core.Errorf(kindOf(err), "upload", "look at %s: %w", localPath, err)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.files[in.abs(remotePath, in.spec.Workdir)] = file{data: data, mode: st.Mode().Perm()}
	return nil
}

func (in *instance) Download(_ context.Context, remotePath, localPath string) error {
	in.mu.Lock()
	f, ok := in.files[in.abs(remotePath, in.spec.Workdir)]
	in.mu.Unlock()
	if !ok {
		return core.Errorf(core.KindNotFound, "download", "no file %s in the sandbox", remotePath)
	}
	if err := os.MkdirAll(filepath.Dir(localPath), 0o755); err != nil {
		return core.Errorf(kindOf(err), "download", "make the folder of %s: %w", localPath, err)
	}
	if err := os.WriteFile(localPath, f.data, f.mode); err != nil {
		return core.Errorf(kindOf(err), "download", "write %s: %w", localPath, err)
	}
	return nil
}

func kindOf(err error) core.Kind {
	if errors.Is(err, os.ErrNotExist) {
		return core.KindNotFound
	}
	return core.KindInvalid
}

func (in *instance) Status(context.Context) (core.Status, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case in.life.Err() != nil:
		return core.StatusStopped, nil
	case in.paused:
		return core.StatusPaused, nil
	default:
		return core.StatusRunning, nil
	}
}

func (in *instance) Destroy(context.Context) error {
	in.world.mu.Lock()
	delete(in.world.instances, in.id)
	in.world.mu.Unlock()
	in.end(errDestroyed)
	return nil
}

func (in *instance) Detach() {}

// Pause only changes what Status says: there is no process to stop.
func (in *instance) Pause(context.Context) error { return in.setPaused(true) }

func (in *instance) Resume(context.Context) error { return in.setPaused(false) }

func (in *instance) setPaused(paused bool) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.paused = paused
	return nil
}

func (in *instance) Endpoint(_ context.Context, port int) (core.Endpoint, error) {
	for _, p := range in.spec.Ports {
		if p == port {
			return core.Endpoint{URL: fmt.Sprintf("mem://%s:%d", in.id, port)}, nil
		}
	}
	return core.Endpoint{}, core.Errorf(core.KindInvalid, "endpoint", "port %d is not one of the spec's", port)
}

// pause waits, or says why it did not.
func pause(ctx context.Context, seconds float64) error {
	t := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
