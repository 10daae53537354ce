package tests

import (
	"os"
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/tests/go/suite"
)

// dockerSuite runs the provider contract's cases in containers of one way of working.
func dockerSuite(t *testing.T, cfg settings, c suite.Config) {
	folder := ownState(t)
	tag := ownTag(t, testImage)
	c.Spec = core.Spec{Image: tag, Workdir: "/work/space"}
	c.TextOnly = true
	c.New = func(t testing.TB) core.Provider { return newDocker(t, cfg) }
	c.Leftovers = func(t testing.TB) []string {
		found := containersOf(t, tag)
		entries, err := os.ReadDir(folder)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			found = append(found, e.Name())
		}
		return found
	}
	suite.Run(t, c)
}

func TestDockerAgentOverSocket(t *testing.T) {
	dockerSuite(t, settings{"create": settings{"agent_transport": "socket"}, "exec": settings{"mode": "agent"}}, suite.Config{})
}

func TestDockerAgentOverStream(t *testing.T) {
	dockerSuite(t, settings{"create": settings{"agent_transport": "stream"}, "exec": settings{"mode": "agent"}}, suite.Config{})
}

func TestDockerEngineExec(t *testing.T) {
	dockerSuite(t, settings{"exec": settings{"mode": "engine", "concurrency": 64}}, suite.Config{MaxInFlight: 20, Slow: 3, NoTerminals: true})
}
