package opensandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// renew begins to prolong the sandbox's life to ttl from now, again and again, until it is let go of.
func (i *instance) renew(ttl, every time.Duration) {
	ctx, cancel := context.WithCancel(i.life)
	over := make(chan struct{})
	i.stopBeat, i.beating = cancel, over
	started := i.p.background(func(context.Context) {
		defer close(over)
		ops := i.ops()
		ops.lateIsFinal = false
		for pause(ctx, every) {
			err := ops.retry(ctx, "renewing sandbox "+i.id, func(ctx context.Context) error {
				return i.p.rest.renewSandbox(ctx, i.id, time.Now().Add(ttl))
			})
			if err == nil || ctx.Err() != nil {
				continue
			}
			err = &core.Error{Kind: core.KindSandbox, Op: "renew", Provider: providerName, SandboxID: i.id,
				Err: fmt.Errorf("OpenSandbox lifetime renewal failed: %w", err)}
			quietly(ctx, "a sandbox's life could not be prolonged; it ends when its time is over", err)
			i.mu.Lock()
			i.renewErr = err
			i.mu.Unlock()
			return
		}
	})
	if !started {
		close(over)
	}
}

func (i *instance) stopRenewing() {
	if i.beating != nil {
		i.stopBeat()
		<-i.beating
	}
}
