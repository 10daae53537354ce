package local

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestConfigDefaults(t *testing.T) {
	t.Setenv(isolationEnv, "")
	c, err := parseConfig(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Shell != "/bin/bash" || c.DefaultTimeoutS != 180 || c.Concurrency != nil || c.Isolation != "auto" || c.Network != "shared" ||
		c.MaxOutputBytes != 268435456 || c.KillGraceS != 0.5 || c.OrphanTimeoutS != 60 || c.HandoverTimeoutS != 3600 {
		t.Errorf("got %+v", c)
	}
}

func TestIsolationComesFromTheEnvironmentUnlessConfigured(t *testing.T) {
	t.Setenv(isolationEnv, "none")
	c, err := parseConfig(nil)
	if err != nil || c.Isolation != "none" {
		t.Errorf("got %q, %v", c.Isolation, err)
	}
	c, err = parseConfig(json.RawMessage(`{"isolation": "bwrap"}`))
	if err != nil || c.Isolation != "bwrap" {
		t.Errorf("got %q, %v", c.Isolation, err)
	}
	t.Setenv(isolationEnv, "jail")
	if _, err := parseConfig(nil); core.KindOf(err) != core.KindInvalid || !strings.Contains(err.Error(), isolationEnv) {
		t.Errorf("got %v", err)
	}
}

func TestConfigRefusesWhatItCanNotMean(t *testing.T) {
	for raw, want := range map[string]struct {
		kind core.Kind
		text string
	}{
		`{"workspace_rot": "/tmp"}`:                   {core.KindUnknownKey, `did you mean "workspace_root"`},
		`{"workspace_root": "tmp"}`:                   {core.KindInvalid, "absolute"},
		`{"shell": "bash"}`:                           {core.KindInvalid, "absolute"},
		`{"default_timeout_s": 0}`:                    {core.KindInvalid, "default_timeout_s"},
		`{"concurrency": 0}`:                          {core.KindInvalid, "concurrency"},
		`{"isolation": "docker"}`:                     {core.KindInvalid, "isolation"},
		`{"network": "host"}`:                         {core.KindInvalid, "network"},
		`{"network": "none", "isolation": "none"}`:    {core.KindInvalid, "network none"},
		`{"max_output_bytes": -1}`:                    {core.KindInvalid, "max_output_bytes"},
		`{"kill_grace_s": -1}`:                        {core.KindInvalid, "kill_grace_s"},
		`{"inherit_env": ["A=B"]}`:                    {core.KindInvalid, "inherit_env"},
		`{"default_timeout_s": "long"}`:               {core.KindInvalid, "default_timeout_s"},
		`[1]`:                                         {core.KindInvalid, "mapping"},
		`{"orphan_timeout_s": 1, "handover_time": 2}`: {core.KindUnknownKey, "handover_timeout_s"},
	} {
		if _, err := New(json.RawMessage(raw)); core.KindOf(err) != want.kind || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: got %v of kind %q", raw, err, core.KindOf(err))
		}
	}
}

func TestThePeersKeysAreKept(t *testing.T) {
	c, err := parseConfig(json.RawMessage(`{"workspace_root": "/srv/w", "shell": "/bin/sh", "default_timeout_s": 2.5, "concurrency": 8}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.workspaceRoot() != "/srv/w" || c.Shell != "/bin/sh" || *c.Concurrency != 8 || seconds(c.DefaultTimeoutS) != 2500*time.Millisecond {
		t.Errorf("got %+v", c)
	}
}

func TestSecondsDoNotOverflow(t *testing.T) {
	if d := seconds(1e30); d != 1<<63-1 {
		t.Errorf("got %d", d)
	}
}
