package docker

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestIdleConnectionsToTheEngineEndSoon(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{}, 1)
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ApiVersion":"1.41"}`)
	}))
	h.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}
	h.Start()
	t.Cleanup(h.Close)
	e, err := newEngine(target{url: "tcp://engine:2375", apiVersion: "1.41", dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", h.Listener.Addr().String())
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	_, err = e.Version(t.Context())
	require.NoError(t, err)
	select {
	case <-closed:
	case <-time.After(5 * idleFor):
		require.Fail(t, "an idle connection is kept for longer than it should be")
	}
}
