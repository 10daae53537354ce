// Package publicopensandbox runs the provider contract's cases on the public OpenSandbox server. It is a package of its
// own so that its tests, which wait for containers most of the time, run beside others.
package publicopensandbox

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/opensandbox"
)

// settings is a provider's configuration block.
type settings = map[string]any

// publicServer is the public OpenSandbox server with our daemon in its sandboxes.
type publicServer struct {
	URL        string `json:"url"`
	Key        string `json:"api_key"`
	Image      string `json:"image"`
	SmallImage string `json:"small_image"`
	Volumes    string `json:"volumes"`
	Mark       string `json:"mark"`
}

// startPublicServer runs the server until the test ends. It ends with this process too, however that goes.
func startPublicServer(t *testing.T) *publicServer {
	t.Helper()
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	cmd := exec.Command(harnessPython(root), filepath.Join(root, "tests/testenv/opensandbox/serve.py"))
	cmd.Stderr = os.Stderr
	hold, err := cmd.StdinPipe()
	require.NoError(t, err)
	told, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = hold.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server's harness: %v", err)
		}
	})
	line, err := bufio.NewReader(told).ReadBytes('\n')
	require.NoError(t, err, "the harness has told why on stderr")
	s := &publicServer{}
	require.NoError(t, json.Unmarshal(line, s))
	return s
}

// harnessPython is the interpreter of the development environment where there is one.
func harnessPython(root string) string {
	own := filepath.Join(root, ".venv/bin/python")
	if _, err := os.Stat(own); err == nil {
		return own
	}
	return "python3"
}

// provider makes a provider on the server. It is the caller's to close.
func (s *publicServer) provider(t testing.TB, proxied bool, blocks settings) core.Provider {
	t.Helper()
	all := settings{
		"connection": settings{"domain": s.URL, "api_key": s.Key, "use_server_proxy": proxied},
		"create":     settings{"connect_poll_s": 0.05, "retry_delay_s": 0.05},
		"operations": settings{"retry_delay_s": 0.05},
	}
	for name, block := range blocks {
		merged, _ := all[name].(settings)
		merged = maps.Clone(merged)
		maps.Copy(merged, block.(settings))
		all[name] = merged
	}
	raw, err := json.Marshal(all)
	require.NoError(t, err)
	p, err := opensandbox.New(raw)
	require.NoError(t, err)
	return p
}

// containers lists the server's sandboxes as the engine knows them.
func (s *publicServer) containers(t testing.TB) []string {
	t.Helper()
	listed, err := exec.Command("docker", "ps", "-aq", "--no-trunc", "--filter", "label=opensandbox.io/id").Output()
	require.NoError(t, err)
	var found []string
	for _, id := range strings.Fields(string(listed)) {
		shown, err := exec.Command("docker", "inspect", "--format", `{{range .Config.Env}}{{println .}}{{end}}`, id).Output()
		// One that has gone meanwhile is not there.
		if err == nil && slices.Contains(strings.Split(string(shown), "\n"), s.Mark) {
			found = append(found, id)
		}
	}
	return found
}
