package tests

import (
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/tests/go/suite"
)

// opensandboxSuite holds the provider to the contract, on a stand-in server whose sandboxes are folders and processes of
// this machine.
func opensandboxSuite(t *testing.T, blocks settings, c suite.Config) {
	server := startStandin(t)
	c.Spec, c.Slow = core.Spec{Image: "stand-in:1"}, 3
	c.New = func(t testing.TB) core.Provider { return newOpenSandboxHere(t, server, blocks) }
	c.Leftovers = func(testing.TB) []string { return server.Sandboxes() }
	c.NoHome, c.LateUsers, c.NoBackPressure = true, true, true
	c.NoTerminalSignalCodes, c.ShortReplay, c.FailedEnds = true, true, true
	c.Unisolated, c.NoStdin, c.TextOnly, c.NoTreeKill, c.NoTTL, c.NoEntrypoint = true, true, true, true, true, true
	suite.Run(t, c)
}

func TestOpenSandboxSuiteStreamed(t *testing.T) {
	opensandboxSuite(t, nil, suite.Config{AsLines: true})
}

func TestOpenSandboxSuitePolled(t *testing.T) {
	opensandboxSuite(t, osbModes["polled"], suite.Config{Merged: true, NoStreaming: true})
}
