package tests

import (
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// TestDockerRequestsCarryTheCallersSpan puts a proxy that reads along before the engine.
func TestDockerRequestsCarryTheCallersSpan(t *testing.T) {
	engine(t)
	const started = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	const ran = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
	var mu sync.Mutex
	carried := map[string]map[string]bool{} // span -> path's last part
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", "/var/run/docker.sock")
	}}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.Transport = transport
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		span := r.Header.Get("traceparent")
		if carried[span] == nil {
			carried[span] = map[string]bool{}
		}
		carried[span][filepath.Base(r.URL.Path)] = true
		mu.Unlock()
		proxy.ServeHTTP(w, r)
	})}
	socket := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
		transport.CloseIdleConnections()
	})

	p := newDocker(t, settings{"connection": settings{"host": "unix://" + socket}, "exec": settings{"mode": "engine"}})
	sb := core.NewSandbox(p, core.Spec{Image: testImage})
	require.NoError(t, sb.Start(core.WithTraceparent(t.Context(), started)))
	defer func() { require.NoError(t, sb.Stop(context.Background())) }()
	_, err = sb.Exec(core.WithTraceparent(t.Context(), ran), core.ExecRequest{Command: "true"}, nil)
	require.NoError(t, err)

	mu.Lock()
	defer mu.Unlock()
	require.True(t, carried[started]["create"], "the container was created outside the caller's span: %v", carried)
	require.True(t, carried[started]["start"], "the container was started outside the caller's span: %v", carried)
	require.True(t, carried[ran]["exec"], "the command was run outside the caller's span: %v", carried)
}
