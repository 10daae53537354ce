package docker

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// probeOutput bounds what is kept of a probe's output.
const probeOutput = 64 << 10

// probe runs the readiness check until it has passed as often in a row as wanted.
// Without a deadline the first failure is final.
func probe(ctx context.Context, cfg probeConfig, inst *instance) error {
	if cfg.Command == nil {
		return nil
	}
	cause := ctx
	if cfg.DeadlineS != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, seconds(*cfg.DeadlineS))
		defer cancel()
	}
	var last error
	for passed := 0; ; {
		err := probeOnce(ctx, cfg, inst)
		if err == nil {
			if passed++; passed >= cfg.StableCount {
				return nil
			}
		} else {
			passed = 0
			last = err
			if cfg.DeadlineS == nil {
				return core.Errorf(core.KindVerification, "", "the sandbox's readiness check failed: %w", err)
			}
			if v := inst.diagnose(cause); v.status == core.StatusStopped {
				return core.Errorf(core.KindVerification, "", "the sandbox's readiness check failed: %s", v.reason)
			}
		}
		// A check that fails at once must not keep the engine busy.
		pause := seconds(cfg.StableDelayS)
		if err != nil {
			pause = max(pause, 100*time.Millisecond)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		switch {
		case cause.Err() != nil:
			return core.Errorf(core.KindVerification, "", "the sandbox's readiness check was given up: %w", context.Cause(cause))
		case ctx.Err() != nil:
			return core.Errorf(core.KindVerification, "", "the sandbox's readiness check did not pass within %gs (probe.deadline_s): %w", *cfg.DeadlineS, orElse(last, "it passed, but not often enough in a row"))
		}
	}
}

func orElse(err error, text string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("%s", text)
}

// probeOnce runs the check once.
func probeOnce(ctx context.Context, cfg probeConfig, inst *instance) error {
	timeout := core.Forever
	if cfg.TimeoutS != nil {
		timeout = seconds(*cfg.TimeoutS)
	}
	out := core.NewCollector(probeOutput)
	defer out.Close()
	res, err := inst.run.exec(ctx, core.ExecRequest{Command: *cfg.Command, Timeout: timeout}, out)
	if err != nil {
		return err
	}
	stdout, stderr := out.Output(core.Stdout).String(), oneLine(out.Output(core.Stderr).String())
	switch {
	case res.ErrorType != "":
		reason := res.Reason
		if strings.Contains(strings.ToLower(reason+stderr), "exec format error") {
			reason += ": the image's programs are built for another architecture; use an image for the engine's platform"
		}
		return fmt.Errorf("%s", strings.TrimSpace(reason+" "+stderr))
	case res.ExitCode != 0:
		if strings.Contains(strings.ToLower(stderr), "exec format error") {
			stderr += ": the image's programs are built for another architecture; use an image for the engine's platform"
		}
		return fmt.Errorf("it ended with code %d: %s", res.ExitCode, stderr)
	case cfg.ExpectedStdout != nil && !strings.Contains(stdout, *cfg.ExpectedStdout):
		return fmt.Errorf("it printed %.100q instead of %q", stdout, *cfg.ExpectedStdout)
	}
	return nil
}
