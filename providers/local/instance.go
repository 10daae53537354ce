package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// instance is one sandbox: one that this process started, or one that another
// process did and this one connected to.
type instance struct {
	provider *provider
	id       string
	dir      *agent.HostDir
	rec      record
	made     []string // directories that were made for the spec's workdir, outermost first
	proc     *process // nil when connected to
	client   *agent.Client

	destroying sync.Mutex // held by the one Destroy that is at work
	destroyed  bool       // guarded by destroying
}

// ID implements core.Instance.
func (in *instance) ID() string { return in.id }

func (in *instance) path(name string) string { return filepath.Join(in.dir.Path, name) }
func (in *instance) logPath() string         { return in.path(logName) }

func (in *instance) options(cfg config) agent.Options {
	return agent.Options{
		Dial:      in.dir.Dial,
		Token:     in.dir.Token,
		PassFDs:   true,
		Provider:  name,
		SandboxID: in.id,
		Diagnose:  in.diagnose,
		Alive:     in.alive,
		KillGrace: seconds(cfg.KillGraceS),
	}
}

// alive ends the wait for an agent that will not come.
func (in *instance) alive(context.Context) error {
	if in.proc != nil && in.proc.hasEnded() {
		return errors.New(in.proc.reason())
	}
	return nil
}

// explain adds what the root process printed to the error of a start.
func (in *instance) explain(err error) error {
	if said := logTail(in.logPath()); said != "" {
		return fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// running tells whether the sandbox's first process lives.
func (in *instance) running() bool {
	if in.proc != nil {
		return !in.proc.hasEnded()
	}
	return in.rec.Agent.alive()
}

// diagnose tells the agent's client what became of the sandbox.
func (in *instance) diagnose(context.Context) agent.Diagnosis {
	if in.running() {
		return agent.Diagnosis{Status: core.StatusRunning, Reason: "the sandbox's agent does not answer, though its process runs"}
	}
	reason := "the sandbox's process has ended"
	if in.proc != nil {
		reason = in.proc.reason()
	}
	return agent.Diagnosis{Status: core.StatusStopped, Reason: reason}
}

// Exec implements core.Instance.
func (in *instance) Exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	if err := checkUser(req.User); err != nil {
		return core.ExecResult{}, err
	}
	req.User = ""
	if in.provider.slots == nil {
		return in.client.Exec(ctx, req, sink)
	}
	waitCtx, cancel := ctx, context.CancelFunc(func() {})
	if req.Timeout > 0 {
		waitCtx, cancel = context.WithTimeout(ctx, req.Timeout)
	}
	defer cancel()
	began := time.Now()
	if err := in.provider.slots.take(waitCtx); err != nil {
		if ctx.Err() != nil {
			return core.ExecResult{}, core.Errorf(core.KindCanceled, "exec", "gave up waiting for one of %d slots: %w", cap(in.provider.slots), err)
		}
		return core.TimedOut(name, req.Timeout), nil
	}
	defer in.provider.slots.give()
	if req.Timeout > 0 {
		asked := req.Timeout
		// The wait counts; what is left is never nothing, which would mean the default.
		req.Timeout = max(asked-time.Since(began), time.Millisecond)
		res, err := in.client.Exec(ctx, req, sink)
		if res.ErrorType == core.ErrorTypeTimeout {
			res.Reason = core.TimedOut(name, asked).Reason
		}
		return res, err
	}
	return in.client.Exec(ctx, req, sink)
}

// Upload implements core.Instance.
func (in *instance) Upload(ctx context.Context, localPath, remotePath string) error {
	return in.client.Upload(ctx, localPath, remotePath)
}

// Download implements core.Instance.
func (in *instance) Download(ctx context.Context, remotePath, localPath string) error {
	return in.client.Download(ctx, remotePath, localPath)
}

// Status implements core.Instance.
func (in *instance) Status(context.Context) (core.Status, error) {
	lost := false
	select {
	case <-in.client.Lost():
		lost = true
	default:
	}
	if lost || !in.running() {
		return core.StatusStopped, nil
	}
	if _, err := os.Stat(in.path(pausedName)); err == nil {
		return core.StatusPaused, nil
	}
	return core.StatusRunning, nil
}

// Pause implements core.Pauser.
func (in *instance) Pause(ctx context.Context) error {
	if err := in.client.Freeze(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(in.path(pausedName), nil, 0o600); err != nil {
		return errors.Join(fmt.Errorf("note that the sandbox is paused: %w", err), in.client.Thaw(ctx))
	}
	return nil
}

// Resume implements core.Pauser.
func (in *instance) Resume(ctx context.Context) error {
	if err := in.client.Thaw(ctx); err != nil {
		return err
	}
	if err := os.Remove(in.path(pausedName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note that the sandbox is not paused: %w", err)
	}
	return nil
}

// Endpoint implements core.EndpointResolver.
func (in *instance) Endpoint(_ context.Context, port int) (core.Endpoint, error) {
	if in.rec.Network == networkNone {
		return core.Endpoint{}, core.Errorf(core.KindNotSupported, "endpoint", "the sandbox has no network to this machine; configure network shared")
	}
	if port < 1 || port > 65535 {
		return core.Endpoint{}, core.Errorf(core.KindInvalid, "endpoint", "sandbox TCP port %d must be between 1 and 65535", port)
	}
	return core.Endpoint{URL: fmt.Sprintf("http://127.0.0.1:%d", port)}, nil
}

// shutdownTimeout is how long an agent gets to end its sandbox in good order.
const shutdownTimeout = 5 * time.Second

// Destroy implements core.Instance. It can be repeated, also after a failure.
func (in *instance) Destroy(ctx context.Context) error {
	in.destroying.Lock()
	defer in.destroying.Unlock()
	if in.destroyed {
		return nil
	}
	if in.client != nil && in.running() {
		shutCtx, cancel := context.WithTimeout(ctx, shutdownTimeout)
		// An agent that can't is killed below.
		_ = in.client.Shutdown(shutCtx)
		cancel()
	}
	if in.client != nil {
		in.client.Close()
	}
	if err := in.kill(ctx); err != nil {
		return fmt.Errorf("end the sandbox's processes: %w", err)
	}
	var errs []error
	if in.rec.Owned {
		errs = append(errs, removeTree(in.rec.Workspace))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the sandbox's files: %w", err)
	}
	// Last, since it holds the record of all the rest.
	if err := errors.Join(removeTree(in.path(tmpName)), removeTree(in.path(varTmpName)), in.dir.Remove()); err != nil {
		return fmt.Errorf("remove the sandbox's folder: %w", err)
	}
	in.destroyed = true
	return nil
}

// kill makes sure that no process of the sandbox is left.
func (in *instance) kill(ctx context.Context) error {
	if in.rec.Agent.PID != 0 {
		if in.rec.Isolated {
			if err := in.rec.Agent.killAndWait(ctx); err != nil {
				return err
			}
		} else if err := in.rec.Agent.killTree(ctx); err != nil {
			return err
		}
	}
	if in.proc == nil {
		return nil
	}
	if in.rec.Agent.PID == 0 {
		in.proc.kill()
	}
	select {
	case <-in.proc.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// abandon removes what a failed create has made so far.
func (in *instance) abandon(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := in.Destroy(ctx); err != nil {
		// The create's own error is what the caller has to see; the rest is for the next process to clear.
		logLeft(in.id, err)
	}
	unmake(in.made)
}

// Detach implements core.Instance.
func (in *instance) Detach() { in.client.Close() }
