package opensandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Pause implements core.Pauser.
func (i *instance) Pause(ctx context.Context) error {
	if err := i.healthy(); err != nil {
		return err
	}
	limit := seconds(i.p.cfg.Operations.PauseResumeTimeoutS)
	short, cancel := bounded(ctx, limit, "waiting for sandbox "+i.id+" to pause")
	defer cancel()
	was := i.setPaused(true)
	err := i.p.rest.changeState(short, i.id, "pause")
	if err == nil {
		err = i.awaitPaused(short)
	}
	if err == nil {
		return nil
	}
	i.setPaused(was) // it may have been before, and still be
	return i.stateError(ctx, short, "pause", limit, err, "")
}

// stateError is what came of a pause or its end.
func (i *instance) stateError(ctx, short context.Context, op string, limit time.Duration, err error, advice string) error {
	if ctx.Err() == nil && short.Err() != nil {
		late := core.Errorf(core.KindTimeout, op, "Timed out waiting for sandbox %s to %s after %gs%s: %w", i.id, op, limit.Seconds(), advice, err)
		return core.WithSandbox(late, core.KindTimeout, op, providerName, i.id)
	}
	return failed(ctx, op, i.id, "the "+op, err)
}

func (i *instance) setPaused(paused bool) (was bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	was, i.paused = i.paused, paused
	return was
}

func (i *instance) isPaused() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.paused
}

// awaitPaused polls until the server says that the sandbox is paused.
func (i *instance) awaitPaused(ctx context.Context) error {
	for {
		info, err := i.info(ctx)
		switch {
		case err != nil:
			return err
		case info.Status.status() == core.StatusPaused:
			return nil
		case info.Status.dead():
			return fmt.Errorf("the sandbox entered %s while pausing (%s)", info.Status.status(), info.Status)
		}
		if !pause(ctx, seconds(i.p.cfg.Create.ConnectPollS)) {
			return context.Cause(ctx)
		}
	}
}

// Resume implements core.Pauser. The sandbox may have moved meanwhile.
func (i *instance) Resume(ctx context.Context) error {
	if err := i.healthy(); err != nil {
		return err
	}
	limit := seconds(i.p.cfg.Operations.PauseResumeTimeoutS)
	short, cancel := bounded(ctx, limit, "waiting for sandbox "+i.id+" to resume")
	defer cancel()
	err := i.p.rest.changeState(short, i.id, "resume")
	if err == nil {
		i.forgetDaemon()
		if err = i.awaitEndpoint(short); err == nil && !i.p.cfg.Create.SkipHealthCheck {
			err = i.awaitDaemon(short, seconds(i.p.cfg.Create.ConnectPollS))
		}
	}
	if err != nil {
		return i.stateError(ctx, short, "resume", limit, err, "; reconnect and check status() before retrying")
	}
	i.setPaused(false)
	return nil
}
