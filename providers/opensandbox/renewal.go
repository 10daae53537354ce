package opensandbox

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// renewal prolongs a sandbox's life again and again. Between two requests it is a timer only: there may be thousands.
type renewal struct {
	i          *instance
	ttl, every time.Duration

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
	cancel  context.CancelFunc // of the request under way
	over    chan struct{}      // closed with its end; nil when none is under way
}

// renew begins to prolong the sandbox's life to ttl from now, until it is let go of.
func (i *instance) renew(ttl, every time.Duration) {
	r := &renewal{i: i, ttl: ttl, every: every}
	i.renewal = r
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer = time.AfterFunc(firstRenewal(every), r.due)
}

// firstRenewal is when a sandbox's first renewal is due: up to half an interval early, so that
// sandboxes which were made together do not all ask at once for as long as they live.
func firstRenewal(every time.Duration) time.Duration {
	return every - time.Duration(rand.Int64N(int64(every)/2+1))
}

func (i *instance) stopRenewing() {
	if i.renewal != nil {
		i.renewal.stop()
	}
}

// due is called by the timer.
func (r *renewal) due() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped || r.i.life.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(r.i.life)
	over := make(chan struct{})
	started := r.i.p.background(func(context.Context) {
		defer close(over)
		defer cancel()
		again := r.once(ctx)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cancel, r.over = nil, nil
		if again && !r.stopped {
			r.timer.Reset(r.every)
		}
	})
	if !started {
		cancel()
		return
	}
	r.cancel, r.over = cancel, over
}

// once prolongs it. It is false when that can't be done.
func (r *renewal) once(ctx context.Context) bool {
	i := r.i
	ops := i.ops()
	ops.lateIsFinal = false
	err := ops.retry(ctx, "renewing sandbox "+i.id, func(ctx context.Context) error {
		return i.p.rest.renewSandbox(ctx, i.id, time.Now().Add(r.ttl))
	})
	if err == nil || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	err = &core.Error{Kind: core.KindSandbox, Op: "renew", Provider: providerName, SandboxID: i.id,
		Err: fmt.Errorf("OpenSandbox lifetime renewal failed: %w", err)}
	quietly(ctx, "a sandbox's life could not be prolonged; it ends when its time is over", err)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.renewErr = err
	return false
}

// stop ends it, and waits until nothing is under way.
func (r *renewal) stop() {
	r.mu.Lock()
	r.stopped = true
	r.timer.Stop()
	over := r.over
	if over != nil {
		r.cancel()
	}
	r.mu.Unlock()
	if over != nil {
		<-over
	}
}
