package opensandbox

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// outOfMemory is what servers write of a sandbox that was killed for its memory.
func outOfMemory(text string) bool {
	text = strings.ToLower(text)
	return strings.Contains(text, "oomkilled") || strings.Contains(text, "oom killed") || strings.Contains(text, "oom-killed") ||
		strings.Contains(text, "oom_killed") || strings.Contains(text, "out of memory") || strings.Contains(text, "out-of-memory")
}

const (
	postMortem     = 5 * time.Second // how long the cause of a loss is looked for
	postMortemCall = 2 * time.Second
	postMortemPoll = 500 * time.Millisecond
)

var errGone = errors.New("the sandbox does not exist any more")

// diagnose looks for the reason why the daemon can't be reached: it gives one that
// is certain, or nil. An out-of-memory kill may show in the status only after a while.
func (i *instance) diagnose(ctx context.Context) error {
	if i.starting.Load() {
		return nil // whoever makes the sandbox looks by itself
	}
	ctx, cancel := context.WithTimeout(ctx, postMortem)
	defer cancel()
	for {
		if err := i.verdict(ctx); err != nil {
			return err
		}
		if !pause(ctx, postMortemPoll) {
			return nil
		}
	}
}

// verdict asks the server once whether the sandbox is dead. nil: it lives, or that is not known.
func (i *instance) verdict(ctx context.Context) error {
	info, err := i.p.rest.getSandbox(ctx, i.id, postMortemCall)
	switch {
	case sandboxGone(err):
		return errGone
	case err != nil:
		return nil
	}
	killed := outOfMemory(info.Status.Reason + " " + info.Status.Message)
	if !killed && info.Status.dead() {
		text, err := i.p.rest.events(ctx, i.id)
		killed = err == nil && outOfMemory(text)
	}
	switch {
	case killed:
		return core.Errorf(core.KindSandbox, "", "Sandbox was OOM-killed. OpenSandbox status: %s; sandbox_id=%s", info.Status, i.id)
	case info.Status.dead():
		return core.Errorf(core.KindSandbox, "", "Sandbox is dead. OpenSandbox status: %s; sandbox_id=%s", info.Status, i.id)
	}
	return nil
}
