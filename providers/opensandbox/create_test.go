package opensandbox

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// The server may name a sandbox when its caller has gone and the provider is being closed: it is removed all the same.
func TestSandboxThatIsNamedTooLateIsRemoved(t *testing.T) {
	asked, name := make(chan struct{}), make(chan struct{})
	var removed atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /v1/sandboxes":
			close(asked)
			<-name
			w.WriteHeader(http.StatusAccepted)
			_, _ = w.Write([]byte(`{"id":"late","status":{"state":"Running"}}`))
		case "DELETE /v1/sandboxes/late":
			removed.Add(1)
			w.WriteHeader(http.StatusNoContent)
		default:
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}))
	defer server.Close()
	raw, err := json.Marshal(map[string]any{"connection": map[string]any{"domain": server.URL, "api_key": "k"}})
	require.NoError(t, err)
	p, err := newProvider(raw)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	given := make(chan error, 1)
	go func() {
		_, err := p.request(ctx, &createBody{}, time.Millisecond)
		given <- err
	}()
	<-asked
	cancel()
	require.ErrorIs(t, <-given, context.Canceled)
	closed := make(chan error, 1)
	go func() { closed <- p.Close(context.Background()) }()
	require.Eventually(t, func() bool { return !p.background(func(context.Context) {}) }, 10*time.Second, time.Millisecond, "it takes no new work")
	close(name)
	require.NoError(t, <-closed)
	assert.EqualValues(t, 1, removed.Load())
}

// A pause that is refused leaves the sandbox what it was: paused, for one that is.
func TestRefusedPauseChangesNothing(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusConflict)
		_, _ = w.Write([]byte(`{"code":"DOCKER::SANDBOX_NOT_RUNNING","message":"Sandbox is not in a running state."}`))
	}))
	defer server.Close()
	raw, err := json.Marshal(map[string]any{"connection": map[string]any{"domain": server.URL, "api_key": "k"}})
	require.NoError(t, err)
	p, err := newProvider(raw)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close(context.Background())) }()
	for _, before := range []bool{true, false} {
		i := p.newInstance("box")
		i.setPaused(before)
		assert.Equal(t, core.KindConflict, core.KindOf(i.Pause(context.Background())))
		assert.Equal(t, before, i.isPaused())
		i.Detach()
	}
}
