package opensandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// probeOutput bounds what is kept of a probe's output.
const probeOutput = 64 << 10

// probe runs the readiness check until it has passed as often in a row as wanted, or its time is over.
func (i *instance) probe(ctx context.Context) error {
	c := &i.p.cfg.Probe
	if c.Command == nil {
		return nil
	}
	each := orSeconds(c.TimeoutS, 0)
	limit := orSeconds(c.DeadlineS, each)
	short, cancel := bounded(ctx, limit, "checking the sandbox")
	defer cancel()
	begun := time.Now()
	var last error
	for tries, passed := 1, 0; ; tries++ {
		timeout := each
		if limit > 0 {
			timeout = max(min(orElse(each, limit), limit-time.Since(begun)), time.Millisecond)
		}
		wait := seconds(c.StableDelayS)
		if err := i.probeOnce(short, orElse(timeout, core.Forever)); err == nil {
			if passed++; passed >= c.StableCount {
				return nil
			}
		} else {
			passed, last = 0, err
			wait = seconds(i.p.cfg.Create.ConnectPollS)
		}
		if ctx.Err() == nil {
			pause(short, wait)
		}
		switch {
		case ctx.Err() != nil:
			return canceled(ctx, "create")
		case short.Err() != nil:
			if last == nil {
				last = errors.New("it passed, but not often enough in a row")
			}
			return core.Errorf(core.KindVerification, "", "sandbox %s did not pass its readiness check before the startup deadline of %gs (%d of %d successes in a row, %d tries): %w",
				i.id, limit.Seconds(), passed, c.StableCount, tries, last)
		}
	}
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// probeOnce runs the check once.
func (i *instance) probeOnce(ctx context.Context, timeout time.Duration) error {
	c := &i.p.cfg.Probe
	out := core.NewCollector(probeOutput)
	defer out.Close()
	res, err := i.run(ctx, core.ExecRequest{Command: *c.Command, User: string(c.User), Timeout: timeout}, out)
	if err != nil {
		return err
	}
	stdout, stderr := out.Output(core.Stdout).String(), clip(out.Output(core.Stderr).String(), 500)
	switch {
	case res.ErrorType != "":
		return fmt.Errorf("%s", strings.TrimSpace(res.Reason+" "+stderr))
	case res.ExitCode != 0:
		return fmt.Errorf("it ended with code %d: %s", res.ExitCode, stderr)
	case c.ExpectedStdout != nil && !strings.Contains(stdout, *c.ExpectedStdout):
		return fmt.Errorf("it printed %.100q instead of %q", stdout, *c.ExpectedStdout)
	}
	return nil
}
