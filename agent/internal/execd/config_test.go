package execd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
)

func TestArgumentsWinOverTheEnvironment(t *testing.T) {
	t.Parallel()
	env := []string{varToken + "=env", varGrace + "=250ms", varEnvs + "=/x/.env", "A=1", "=odd"}
	cfg, err := ParseConfig(nil, env)
	require.NoError(t, err)
	assert.Equal(t, Config{Port: defaultPort, Token: "env", Grace: 250 * time.Millisecond, EnvFile: "/x/.env",
		Env: []string{varGrace + "=250ms", varEnvs + "=/x/.env", "A=1", "=odd", "PATH=" + process.DefaultPath}}, cfg)
	cfg, err = ParseConfig([]string{"--port=1", "--access-token", "arg", "--graceful-shutdown-timeout=1s", "--log-level=6"}, env)
	require.NoError(t, err)
	assert.Equal(t, []any{1, "arg", time.Second}, []any{cfg.Port, cfg.Token, cfg.Grace})
	cfg, err = ParseConfig(nil, []string{"PATH=/bin"})
	require.NoError(t, err)
	assert.Equal(t, Config{Port: defaultPort, Env: []string{"PATH=/bin"}}, cfg)
}

func TestWhatCanNotBeMeantIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, env []string
		says      string
	}{
		{[]string{"--port=65536"}, nil, "65536"},
		{[]string{"--port=x"}, nil, "usage"},
		{[]string{"--unknown"}, nil, "unknown"},
		{[]string{"more"}, nil, `"more"`},
		{nil, []string{varGrace + "=soon"}, varGrace},
	} {
		_, err := ParseConfig(c.args, c.env)
		require.ErrorContains(t, err, c.says)
	}
}

func TestPathsAreExpandedByTheDaemonsEnvironment(t *testing.T) {
	t.Parallel()
	s := New(Config{Env: []string{"HOME=/home/me", "A=a b", "EMPTY="}}, nil)
	defer s.Close()
	for path, want := range map[string]string{
		"/x": "/x", "x/y": "x/y", "~": "/home/me", "~/x": "/home/me/x", "~x": "~x", "/$A/${A}c": "/a b/a bc", "/x$EMPTY": "/x", "/cost$": "/cost$",
	} {
		got, err := s.expand(path)
		require.NoError(t, err)
		assert.Equal(t, want, got, path)
	}
	_, err := s.expand("/$B/${C}")
	require.EqualError(t, err, "path references undefined environment variables: B, C")
}
