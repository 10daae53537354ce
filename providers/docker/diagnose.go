package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// verdict is the state of a sandbox and, unless it runs, why.
type verdict struct {
	status core.Status
	reason string // one line, begins with what it is about
}

// inspectTimeout bounds one question about a container's state. A healthy engine
// answers in milliseconds, a busy one in a second.
const inspectTimeout = 5 * time.Second

// diagnose asks the engine what became of the container.
func (i *instance) diagnose(ctx context.Context) verdict {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	c, err := i.p.engine.ContainerInspect(ctx, i.name)
	switch {
	case err == nil:
		return i.orTTL(stateVerdict(c.State))
	case notFound(err):
		return i.orTTL(verdict{core.StatusStopped, "the container was removed"})
	case errors.Is(err, context.DeadlineExceeded):
		return verdict{core.StatusUnknown, fmt.Sprintf("the Docker engine does not answer within %gs", inspectTimeout.Seconds())}
	case unreachable(err):
		return verdict{core.StatusUnknown, fmt.Sprintf("the Docker engine can't be reached: %v", err)}
	default:
		return verdict{core.StatusUnknown, fmt.Sprintf("the Docker engine can't tell the container's state: %v", err)}
	}
}

// orTTL prefers the end that was to be expected.
func (i *instance) orTTL(v verdict) verdict {
	const late = 500 * time.Millisecond // between the start in the container and here
	if v.status == core.StatusStopped && i.ttl > 0 && time.Since(i.created) >= i.ttl-late {
		v.reason = fmt.Sprintf("the sandbox ended: its ttl of %gs ran out", i.ttl.Seconds())
	}
	return v
}

// diagnoseEnd is diagnose for a container in which nothing can be started any
// more: the engine learns of its end a little later.
func (i *instance) diagnoseEnd(ctx context.Context) verdict {
	const most, step = 2 * time.Second, 50 * time.Millisecond
	for begun := time.Now(); ; {
		v := i.diagnose(ctx)
		if v.reason != "" || time.Since(begun) > most {
			return v
		}
		select {
		case <-time.After(step):
		case <-ctx.Done():
			return v
		}
	}
}

// stateVerdict reads the state that an engine reports.
func stateVerdict(s *container.State) verdict {
	if s == nil {
		return verdict{core.StatusUnknown, "the Docker engine reports no state for the container"}
	}
	switch s.Status {
	case container.StateRunning:
		return verdict{core.StatusRunning, ""}
	case container.StatePaused:
		return verdict{core.StatusPaused, "the container is paused"}
	case container.StateCreated, container.StateRestarting:
		return verdict{core.StatusStarting, fmt.Sprintf("the container is %s", s.Status)}
	case container.StateExited, container.StateDead, container.StateRemoving:
		if s.OOMKilled {
			return verdict{core.StatusStopped, "the container was killed: out of memory"}
		}
		if s.Error != "" {
			return verdict{core.StatusStopped, fmt.Sprintf("the container ended with code %d: %s", s.ExitCode, s.Error)}
		}
		return verdict{core.StatusStopped, fmt.Sprintf("the container ended with code %d", s.ExitCode)}
	default:
		return verdict{core.StatusUnknown, fmt.Sprintf("the container is in the state %q", s.Status)}
	}
}
