package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// silence ends the wait for a sandbox that can't answer: it is paused, or has ended.
type silence struct{ why string }

func (s *silence) Error() string { return s.why }

// unlessSilent bounds an operation other than commands and terminals, which see to it themselves, by the sandbox's being
// able to answer at all. heard tells that it did; done ends the watch.
func (c *Client) unlessSilent(ctx context.Context) (watched context.Context, heard, done func()) {
	watched, giveUp := context.WithCancelCause(ctx)
	answered := make(chan struct{})
	heard = sync.OnceFunc(func() { close(answered) })
	stop := after(ackWithin, func() {
		c.silent(watched, answered, func(why string) { giveUp(&silence{why}) })
	})
	return watched, heard, func() {
		heard()
		giveUp(nil)
		stop()
	}
}

// silent asks the backend about an agent that has not answered, for as long as
// it does not, and gives up when the sandbox can't answer.
func (c *Client) silent(ctx context.Context, heard <-chan struct{}, giveUp func(why string)) {
	for {
		err := c.still(ctx)
		select {
		case <-heard:
			return
		default:
		}
		if err != nil {
			giveUp(err.Error())
			return
		}
		select {
		case <-heard:
			return
		case <-ctx.Done():
			return
		case <-time.After(ackWithin):
		}
	}
}

// still tells why an agent can't answer, nil when it may be about to.
func (c *Client) still(ctx context.Context) error {
	switch d := c.diagnoseTogether(ctx); d.Status {
	case core.StatusPaused, core.StatusStopped, core.StatusError:
		return errors.New(d.Reason)
	}
	return nil
}

// question is one to the backend whose answer many wait for.
type question struct {
	answered chan struct{}
	answer   Diagnosis
}

// diagnoseTogether asks the backend, or waits for the answer to somebody who asks already: where a machine is too busy for an
// agent to answer many commands in time, each of them would ask an engine that is as busy. Who gets none asks again later.
func (c *Client) diagnoseTogether(ctx context.Context) Diagnosis {
	c.mu.Lock()
	q := c.asked
	if q != nil {
		c.mu.Unlock()
		select {
		case <-q.answered:
			return q.answer
		case <-ctx.Done():
			return Diagnosis{Status: core.StatusUnknown}
		}
	}
	q = &question{answered: make(chan struct{})}
	c.asked = q
	c.mu.Unlock()
	q.answer = c.diagnose(ctx)
	c.mu.Lock()
	c.asked = nil
	c.mu.Unlock()
	close(q.answered)
	return q.answer
}

// silentError is why an operation ended when that was the sandbox's silence, nil otherwise.
func silentError(ctx context.Context, what string) error {
	var s *silence
	if !errors.As(context.Cause(ctx), &s) {
		return nil
	}
	return core.Errorf(core.KindSandbox, what, "%w", s)
}
