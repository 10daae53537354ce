package tests

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/local"
	"github.com/nemo-gym/nemo_gym_sandbox/tests/go/suite"
)

func TestLocalIsolated(t *testing.T) {
	suite.Run(t, localConfig(t, "bwrap", suite.Config{NoUsers: true, TextOnly: true}))
}

func TestLocalUnisolated(t *testing.T) {
	suite.Run(t, localConfig(t, "none", suite.Config{NoUsers: true, TextOnly: true, Unisolated: true}))
}

func localConfig(t *testing.T, isolation string, c suite.Config) suite.Config {
	state, work := t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	config, err := json.Marshal(map[string]any{"isolation": isolation, "workspace_root": work})
	if err != nil {
		t.Fatal(err)
	}
	c.New = func(t testing.TB) core.Provider {
		p, err := local.New(config)
		if err != nil {
			t.Fatalf("make the provider: %v", err)
		}
		return p
	}
	c.Leftovers = func(t testing.TB) []string {
		var found []string
		for _, pattern := range []string{filepath.Join(work, "*"), filepath.Join(state, "*", "s", "*"), filepath.Join(os.TempDir(), "local-*")} {
			names, err := filepath.Glob(pattern)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, names...)
		}
		return append(found, processesWith(t, state)...)
	}
	return c
}

// processesWith names this machine's processes that have a path on their command line.
func processesWith(t testing.TB, path string) []string {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, l := range lines {
		// One that has ended meanwhile is not there.
		if raw, err := os.ReadFile(l); err == nil && strings.Contains(string(raw), path) {
			found = append(found, "process "+filepath.Base(filepath.Dir(l))+" "+strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return found
}
