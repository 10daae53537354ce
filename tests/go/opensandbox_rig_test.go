package tests

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/opensandbox"
	standin "github.com/nemo-gym/nemo_gym_sandbox/tests/standins/opensandbox"
)

// newOpenSandbox makes a provider on a stand-in server that is closed with the test.
func newOpenSandbox(t testing.TB, server *standin.Server, blocks settings) core.Provider {
	t.Helper()
	p := newOpenSandboxHere(t, server, blocks)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// newOpenSandboxHere makes a provider that its caller closes.
func newOpenSandboxHere(t testing.TB, server *standin.Server, blocks settings) core.Provider {
	t.Helper()
	all := settings{
		"connection": settings{"domain": server.URL, "api_key": standin.Key, "use_server_proxy": true},
		"create":     settings{"retry_delay_s": 0.01, "connect_poll_s": 0.02},
		"operations": settings{"retry_delay_s": 0.01},
	}
	for name, block := range blocks {
		merged := settings{}
		if base, ok := all[name].(settings); ok {
			for k, v := range base {
				merged[k] = v
			}
		}
		for k, v := range block.(settings) {
			merged[k] = v
		}
		all[name] = merged
	}
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	p, err := opensandbox.New(raw)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func startStandin(t testing.TB) *standin.Server {
	t.Helper()
	s, err := standin.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
