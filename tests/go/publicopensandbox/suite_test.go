package publicopensandbox

import (
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/tests/go/suite"
)

// publicModes are the ways in which sandboxes of the public server are used. Commands have no input there, and what
// they print is told line by line, or as one text with both streams in it.
var publicModes = []struct {
	name    string
	proxied bool
	blocks  settings
	suite.Config
}{
	{"direct_streamed", false, nil, suite.Config{AsLines: true}},
	{"proxied_polled", true, settings{"operations": settings{
		"background_exec": true, "background_poll_initial_s": 0.02, "background_poll_interval_s": 0.2,
	}}, suite.Config{Merged: true, NoStreaming: true, OneSandbox: true}},
}

func TestPublicOpenSandboxServer(t *testing.T) {
	server := startPublicServer(t)
	for _, mode := range publicModes {
		t.Run(mode.name, func(t *testing.T) {
			c := mode.Config
			c.Spec = core.Spec{Image: server.Image, Workdir: "/work/space", Env: map[string]string{}}
			c.New = func(t testing.TB) core.Provider { return server.provider(t, mode.proxied, mode.blocks) }
			c.Leftovers = server.containers
			// The daemon ends process groups.
			c.NoTreeKill = true
			c.TextOnly, c.NoStdin, c.NoBackPressure, c.NoHome, c.LateUsers = true, true, true, true, true
			// A time to live is a minute at least, which is too long to wait for.
			c.NoTerminalSignalCodes, c.ShortReplay, c.NoLateAttach, c.FailedEnds, c.NoTTL = true, true, true, true, true
			c.MaxInFlight, c.Slow = 40, 2
			suite.Run(t, c)
		})
	}
}
