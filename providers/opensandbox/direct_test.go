package opensandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Where requests to a daemon go when the server tells a way that leads through the daemon itself, or looks like one.
func TestDaemonsOwnForwarderIsLeftOut(t *testing.T) {
	for _, c := range []struct {
		name, endpoint, headers string
		proxied, isDaemon       bool
		want                    string
	}{
		{"the daemon's own", "/proxy/44772", "{}", false, true, "/files/info"},
		{"with the daemon's token", "/proxy/44772", `{"X-EXECD-ACCESS-TOKEN":"t"}`, false, true, "/files/info"},
		{"somebody else's", "/proxy/44772", "{}", false, false, "/proxy/44772/files/info"},
		{"below a path", "/box/proxy/44772", "{}", false, true, "/box/proxy/44772/files/info"},
		{"by header", "/proxy/44772", `{"OpenSandbox-Ingress-To":"box"}`, false, true, "/proxy/44772/files/info"},
		{"through the server", "/proxy/44772", "{}", true, true, "/proxy/44772/files/info"},
		{"no forwarder", "", "{}", false, true, "/files/info"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var asked []string
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				asked = append(asked, r.URL.Path)
				mu.Unlock()
				switch {
				case strings.Contains(r.URL.Path, "/endpoints/"):
					_, _ = fmt.Fprintf(w, `{"endpoint":"%s%s","headers":%s}`, r.Host, c.endpoint, c.headers)
				case strings.HasPrefix(r.URL.Path, "/v1/"):
					_, _ = fmt.Fprint(w, `{"id":"box","status":{"state":"Running"}}`)
				case r.URL.Path == "/pty/none" && c.isDaemon:
					w.WriteHeader(http.StatusNotFound)
					_, _ = fmt.Fprint(w, `{"code":"CONTEXT_NOT_FOUND","message":"pty session none not found"}`)
				case r.URL.Path == "/pty/none":
					http.NotFound(w, r)
				default:
					_, _ = fmt.Fprint(w, `{}`)
				}
			}))
			defer server.Close()
			config, err := json.Marshal(map[string]any{"connection": map[string]any{"domain": server.URL, "use_server_proxy": c.proxied}})
			require.NoError(t, err)
			p, err := New(config)
			require.NoError(t, err)
			defer func() { assert.NoError(t, p.Close(t.Context())) }()
			in, _, err := p.(core.Connector).Connect(t.Context(), map[string]any{"sandbox_id": "box"})
			require.NoError(t, err)
			defer in.Detach()
			_, err = in.(*instance).ask(t.Context(), call{method: http.MethodGet}, "/files/info", nil)
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, c.want, asked[len(asked)-1], "of %v", asked)
		})
	}
}

// A sandbox that another process has paused and resumed is somewhere else.
func TestSandboxThatHasMovedIsFound(t *testing.T) {
	daemon := func() *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/command" {
				replay(http.StatusOK, []string{`{"type":"init","text":"1"}` + "\n\n" + `{"type":"execution_complete"}` + "\n\n"})(w, "")
			}
		}))
	}
	before, after := daemon(), daemon()
	defer after.Close()
	var at atomic.Value
	at.Store(before.Listener.Addr().String())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/endpoints/") {
			_, _ = fmt.Fprintf(w, `{"endpoint":%q}`, at.Load())
			return
		}
		_, _ = fmt.Fprint(w, `{"id":"box","status":{"state":"Running"}}`)
	}))
	defer server.Close()
	config, err := json.Marshal(map[string]any{
		"connection": map[string]any{"domain": server.URL}, "operations": map[string]any{"retries": 1, "retry_delay_s": 0},
		"create": map[string]any{"skip_health_check": true},
	})
	require.NoError(t, err)
	p, err := newProvider(config)
	require.NoError(t, err)
	defer func() { assert.NoError(t, p.Close(t.Context())) }()
	i := p.newInstance("box")
	defer i.Detach()
	_, err = i.locate(t.Context())
	require.NoError(t, err)
	res, _, _, err := runIn(t, i, core.ExecRequest{Command: "x"})
	require.NoError(t, err)
	require.Empty(t, res.ErrorType, res.Reason)

	before.Close()
	at.Store(after.Listener.Addr().String())
	local := filepath.Join(t.TempDir(), "local")
	require.NoError(t, os.WriteFile(local, []byte("x"), 0o600))
	require.NoError(t, i.Upload(t.Context(), local, "/there"), "with the second try")
	res, _, _, err = runIn(t, i, core.ExecRequest{Command: "x"})
	require.NoError(t, err)
	assert.Empty(t, res.ErrorType, res.Reason)
}
