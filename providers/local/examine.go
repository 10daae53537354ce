package local

import (
	"context"
	"os"
	"runtime"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Examine implements core.Examiner.
func (p *provider) Examine(context.Context) []core.Fact {
	isolation := core.Fact{Name: "isolation", Value: p.bwrap, Origin: "isolation=" + p.cfg.Isolation}
	if os.Getenv(isolationEnv) == p.cfg.Isolation {
		isolation.Origin = isolationEnv + "=" + p.cfg.Isolation
	}
	switch {
	case p.bwrap != "":
	case p.err != nil:
		isolation.Problem = p.err.Error()
	case p.cfg.Isolation == isolationNone:
		isolation.Value = "none: commands have all rights of this user"
	default:
		isolation.Value = "none: commands have all rights of this user"
		if _, err := bubblewrap(p.cfg.Network); err != nil {
			isolation.Problem = err.Error()
		}
	}
	state := core.Fact{Name: "state directory"}
	dir, err := core.StateDir()
	state.Value = dir
	if err != nil {
		state.Problem = err.Error()
	}
	binary := core.Fact{Name: "agent for " + runtime.GOARCH}
	if binary.Value, err = agent.Binary(runtime.GOARCH); err != nil {
		binary.Problem = err.Error()
	}
	return []core.Fact{
		isolation, {Name: "network", Value: p.cfg.Network}, {Name: "workspaces", Value: p.cfg.workspaceRoot()}, state, binary,
	}
}
