package docker

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// contextDir is a docker configuration folder with one stored context, which is the current one.
func contextDir(t *testing.T, name, host string) string {
	dir := t.TempDir()
	meta := filepath.Join(dir, "contexts", "meta", digest.FromString(name).Encoded())
	require.NoError(t, os.MkdirAll(meta, 0o700))
	raw, err := json.Marshal(map[string]any{"Name": name, "Metadata": map[string]any{}, "Endpoints": map[string]any{
		"docker": map[string]any{"Host": host, "SkipTLSVerify": false}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(meta, "meta.json"), raw, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"currentContext": "`+name+`"}`), 0o600))
	return dir
}

func TestWhichEngineIsMeant(t *testing.T) {
	dir := contextDir(t, "lab", "tcp://lab.invalid:2375")
	for _, c := range []struct {
		name   string
		cfg    connectionConfig
		env    map[string]string
		host   string
		origin string
	}{
		{"argument before all", connectionConfig{Host: "unix:///a.sock", Context: "lab", ConfigDir: dir}, map[string]string{"DOCKER_HOST": "unix:///b.sock"}, "unix:///a.sock", "connection.host"},
		{"context argument before environment", connectionConfig{Context: "lab", ConfigDir: dir}, map[string]string{"DOCKER_HOST": "unix:///b.sock"}, "tcp://lab.invalid:2375", `connection.context "lab"`},
		{"host variable before context variable", connectionConfig{}, map[string]string{"DOCKER_HOST": "unix:///b.sock", "DOCKER_CONTEXT": "lab", "DOCKER_CONFIG": dir}, "unix:///b.sock", "DOCKER_HOST"},
		{"context variable", connectionConfig{}, map[string]string{"DOCKER_CONTEXT": "lab", "DOCKER_CONFIG": dir}, "tcp://lab.invalid:2375", `DOCKER_CONTEXT "lab"`},
		{"current context", connectionConfig{}, map[string]string{"DOCKER_CONFIG": dir}, "tcp://lab.invalid:2375", `docker's current context "lab"`},
		{"default", connectionConfig{ConfigDir: t.TempDir()}, nil, defaultHost, "the default"},
		{"the context called default", connectionConfig{Context: "default", ConfigDir: dir}, map[string]string{"DOCKER_HOST": "unix:///b.sock"}, "unix:///b.sock", "DOCKER_HOST"},
	} {
		got, err := findTarget(c.cfg, func(k string) string { return c.env[k] })
		require.NoError(t, err, c.name)
		assert.Equal(t, c.host, got.host, c.name)
		assert.Equal(t, c.origin, got.origin, c.name)
	}
}

func TestEngineOverSSHNeedsNoAnswerToBeChosen(t *testing.T) {
	got, err := findTarget(connectionConfig{Host: "ssh://me@lab.invalid", ConfigDir: t.TempDir()}, func(string) string { return "" })
	require.NoError(t, err)
	_, err = newEngine(got)
	require.NoError(t, err)
}

func TestCertificatesThatAreMissingAreAnErrorAtOnce(t *testing.T) {
	_, err := findTarget(connectionConfig{Host: "tcp://127.0.0.1:2376", CertPath: t.TempDir(), ConfigDir: t.TempDir()}, func(string) string { return "" })
	assert.ErrorContains(t, err, "certificates for the engine")
	_, err = findTarget(connectionConfig{ConfigDir: t.TempDir()}, func(k string) string { return map[string]string{"DOCKER_TLS_VERIFY": "1"}[k] })
	assert.NoError(t, err, "a socket needs none")
}

func TestUnreachableEngineIsExplained(t *testing.T) {
	for host, want := range map[string]string{
		"unix://" + filepath.Join(t.TempDir(), "none.sock"): "the socket does not exist",
		"tcp://127.0.0.1:9": "no Docker engine at tcp://127.0.0.1:9",
	} {
		p, err := newProvider(json.RawMessage(`{"connection": {"host": "` + host + `"}}`))
		require.NoError(t, err)
		_, err = p.engineVersion(t.Context())
		assert.ErrorContains(t, err, want)
		assert.ErrorContains(t, err, "connection.host")
		require.NoError(t, p.Close(t.Context()))
	}
}

func TestAPasswordInTheHostIsNotRepeated(t *testing.T) {
	for _, host := range []string{
		"tcp://me:hunter2@127.0.0.1:9", "http://:hunter2@127.0.0.1:9", "tcp://me:hunter2@bad host", "ftp://me:hunter2@127.0.0.1",
		"ssh://me:hunter2@127.0.0.1", "tcp://me:hun%ter2@127.0.0.1", "tcp://me:hunter2/@127.0.0.1:9", "tcp://me:hunter2@",
	} {
		got, err := findTarget(connectionConfig{Host: host, ConfigDir: t.TempDir()}, func(string) string { return "" })
		if err == nil {
			err = got.explain(t.Context(), errors.New("no"))
		}
		assert.Error(t, err, host)
		assert.NotRegexp(t, "hun.*ter2", err.Error(), host)
	}
}

// An engine that accepts connections and says nothing must not hold anybody longer than he wants to wait.
func TestSilentEngineEndsWithTheContext(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "engine.sock"))
	require.NoError(t, err)
	accepted := make(chan net.Conn, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	defer func() {
		_ = l.Close()
		<-done
		close(accepted)
		for c := range accepted {
			_ = c.Close()
		}
	}()
	got, err := findTarget(connectionConfig{Host: "unix://" + l.Addr().String(), APIVersion: "1.41", ConfigDir: t.TempDir()}, func(string) string { return "" })
	require.NoError(t, err)
	e, err := newEngine(got)
	require.NoError(t, err)
	defer func() { _ = e.Close() }()
	for name, call := range map[string]func(ctx context.Context) error{
		"version": func(ctx context.Context) error { _, err := e.Version(ctx); return err },
		"attach":  func(ctx context.Context) error { _, err := e.ExecAttach(ctx, "x"); return err },
		"inspect": func(ctx context.Context) error { _, err := e.ContainerInspect(ctx, "x"); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		begun := time.Now()
		err := call(ctx)
		cancel()
		assert.ErrorIs(t, err, context.DeadlineExceeded, name)
		assert.Less(t, time.Since(begun), 5*time.Second, name)
	}
}
