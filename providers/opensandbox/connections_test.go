package opensandbox

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A request that ends after the provider was closed leaves no connection behind, whether
// it was under way by then or came later.
func TestConnectionsOfAClosedProviderAreNotKept(t *testing.T) {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	changed := make(chan struct{}, 64)
	held := make(chan struct{})
	arrived := make(chan struct{}, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			arrived <- struct{}{}
			<-held
		}
		_, _ = io.WriteString(w, "{}")
	}))
	server.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		switch s {
		case http.StateNew:
			open[c] = true
		case http.StateClosed:
			delete(open, c)
		}
		mu.Unlock()
		changed <- struct{}{}
	}
	server.Start()
	defer server.Close()

	cfg, err := json.Marshal(map[string]any{"connection": map[string]any{
		"domain": server.URL, "api_key": "k",
		"transport_backend": "httpx", "keepalive_expiry_s": 3600,
	}})
	require.NoError(t, err)
	p, err := newProvider(cfg)
	require.NoError(t, err)
	get := func(path string) error {
		_, err := p.rest.do(t.Context(), call{method: http.MethodGet, url: server.URL + path}, nil)
		return err
	}

	slow := make(chan error, 1)
	go func() { slow <- get("/held") }()
	<-arrived
	require.NoError(t, p.Close(t.Context()))
	require.NoError(t, get("/later"))
	close(held)
	require.NoError(t, <-slow)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		mu.Lock()
		left := len(open)
		mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%d connections are left open", left)
		}
	}
}
