// Package all knows every provider that this build has.
package all

import (
	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/docker"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/local"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/mem"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/opensandbox"
)

// Registry gives a new registry with all providers: one line each.
func Registry() *core.Registry {
	r := core.NewRegistry()
	r.Register("docker", docker.New)
	r.Register("local", local.New)
	r.Register("mem", mem.NewFactory())
	r.Register("opensandbox", opensandbox.New)
	return r
}
