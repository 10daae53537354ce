package docker

import (
	"context"
	"fmt"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Examine implements core.Examiner.
func (p *Provider) Examine(ctx context.Context) []core.Fact {
	facts := []core.Fact{
		{Name: "engine's address", Value: p.Location(), Origin: p.target.origin},
		{Name: "docker's configuration", Value: p.target.configDir},
		{Name: "ways into a sandbox", Value: p.describeWays(), Origin: "exec.mode, create.agent_transport"},
	}
	version := core.Fact{Name: "engine's version"}
	v, err := p.engineVersion(ctx)
	if err != nil {
		version.Problem = err.Error()
		return append(facts, version)
	}
	version.Value = fmt.Sprintf("%s, API %s, %s/%s", v.Version, v.API, v.OS, v.Arch)
	if p.target.apiVersion != "" {
		version.Origin = "connection.api_version or DOCKER_API_VERSION"
	}
	binary := core.Fact{Name: "agent for " + v.Arch, Value: "built in"}
	if hash, err := agent.BinaryHash(v.Arch); err != nil {
		binary.Value, binary.Problem = "", err.Error()
	} else {
		binary.Value = "built in, " + hash
	}
	return append(facts, version, binary)
}

func (p *Provider) describeWays() string {
	var names []string
	for _, w := range p.ways() {
		names = append(names, w.String())
	}
	return strings.Join(names, ", ")
}
