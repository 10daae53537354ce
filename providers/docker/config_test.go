package docker

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestConfigErrorsNameTheKey(t *testing.T) {
	for raw, want := range map[string]string{
		`{"create": {"start_timeout_s": 0}}`:                                      "create.start_timeout_s",
		`{"create": {"pids_limit": 0}}`:                                           "create.pids_limit",
		`{"create": {"publish_host": "localhost"}}`:                               "create.publish_host",
		`{"create": {"agent_transport": "pigeon"}}`:                               "create.agent_transport must be one of auto, socket, stream",
		`{"create": {"pull_policy": "sometimes"}}`:                                "create.pull_policy",
		`{"create": {"platform": "arm64"}}`:                                       "create.platform",
		`{"create": {"extra_run_args": ["--rm"]}}`:                                "--rm",
		`{"create": {"orphan_timeout_s": -1}}`:                                    "create.orphan_timeout_s",
		`{"exec": {"default_timeout_s": 0}}`:                                      "exec.default_timeout_s",
		`{"exec": {"concurrency": 0}}`:                                            "exec.concurrency",
		`{"exec": {"exec_shell": ""}}`:                                            "exec.exec_shell",
		`{"exec": {"mode": "other"}}`:                                             "exec.mode",
		`{"exec": {"mode": "agent", "extra_exec_args": ["--privileged"]}}`:        "exec.extra_exec_args",
		`{"exec": {"extra_exec_args": ["--detach"]}}`:                             "--detach",
		`{"probe": {"timeout_s": 0}}`:                                             "probe.timeout_s",
		`{"probe": {"deadline_s": 0}}`:                                            "probe.deadline_s",
		`{"probe": {"stable_count": 0}}`:                                          "probe.stable_count",
		`{"probe": {"stable_delay_s": -0.1}}`:                                     "probe.stable_delay_s",
		`{"connection": {"host": "127.0.0.1:2375"}}`:                              "127.0.0.1:2375",
		`{"connection": {"host": "ftp://x"}}`:                                     "ftp",
		`{"connection": {"context": "no-such", "config_dir": "/no/such/folder"}}`: "no-such",
	} {
		_, err := New(json.RawMessage(raw))
		require.Error(t, err, raw)
		assert.Equal(t, core.KindInvalid, core.KindOf(err), raw)
		assert.ErrorContains(t, err, want)
	}
	_, err := New(json.RawMessage(`{"exec": {"concurency": 3}}`))
	assert.Equal(t, core.KindUnknownKey, core.KindOf(err))
	assert.ErrorContains(t, err, `did you mean "concurrency"?`)
}

func TestConfigNullSaysNoLimit(t *testing.T) {
	p, err := newProvider(json.RawMessage(`{
		"create": {"start_timeout_s": null, "network": null, "platform": null, "pids_limit": null},
		"exec": {"default_timeout_s": null, "concurrency": null, "exec_shell": null},
		"probe": {"command": null, "timeout_s": null, "deadline_s": null}, "connection": null}`))
	require.NoError(t, err)
	assert.Zero(t, p.cfg.Create.startTimeout())
	assert.Equal(t, core.Forever, p.DefaultExecTimeout())
	assert.Nil(t, p.cfg.Probe.Command)
	assert.Nil(t, p.slots, "the agent has no limit")
}

func TestConfigDefaults(t *testing.T) {
	p, err := newProvider(nil)
	require.NoError(t, err)
	assert.Equal(t, 600*time.Second, p.cfg.Create.startTimeout())
	assert.Equal(t, 180*time.Second, p.DefaultExecTimeout())
	assert.EqualValues(t, 256<<20, p.MaxOutputBytes())
	assert.Equal(t, "docker-sandbox-ready", *p.cfg.Probe.ExpectedStdout)
	assert.Equal(t, []way{waySocket, wayStream, wayEngine}, p.ways())

	p, err = newProvider(json.RawMessage(`{"exec": {"mode": "engine"}}`))
	require.NoError(t, err)
	assert.Equal(t, engineConcurrency, cap(p.slots))
	p, err = newProvider(json.RawMessage(`{"exec": {"extra_exec_args": ["--privileged"]}, "create": {"agent_transport": "stream"}}`))
	require.NoError(t, err)
	assert.Equal(t, []way{wayEngine}, p.ways())
	p, err = newProvider(json.RawMessage(`{"exec": {"mode": "agent", "concurrency": 2}, "create": {"agent_transport": "stream"}}`))
	require.NoError(t, err)
	assert.Equal(t, []way{wayStream}, p.ways())
	assert.Equal(t, 2, cap(p.slots))
}
