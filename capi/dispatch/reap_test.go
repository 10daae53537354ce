package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// crowded is a backend with more sandboxes than one event can tell of.
type crowded struct {
	core.Provider
	found  []core.Found
	reaped []string
}

func (p *crowded) Name() string                               { return "crowded" }
func (p *crowded) List(context.Context) ([]core.Found, error) { return p.found, nil }
func (p *crowded) Close(context.Context) error                { return nil }
func (p *crowded) Examine(context.Context) []core.Fact {
	return []core.Fact{{Name: "door", Value: "open", Origin: "nobody"}}
}

func (p *crowded) Reap(_ context.Context, id string) error {
	p.reaped = append(p.reaped, id)
	return nil
}

func TestAListIsReadPageByPage(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	p := &crowded{}
	for n := range 1000 {
		p.found = append(p.found, core.Found{
			ID: fmt.Sprintf("box-%04d", 999-n), Provider: "crowded", Owner: core.Owner{Run: "r", Host: "h", PID: 5}, OwnerState: core.OwnerDead,
			Created: time.Unix(1000, 5e8), Status: core.StatusPaused,
		})
	}
	l := newLibrary(t, func(r *core.Registry) {
		r.Register("crowded", func(json.RawMessage) (core.Provider, error) { return p, nil })
	})
	h := newHost(t, l)
	provider, err := l.NewProvider("crowded", nil)
	require.NoError(t, err)
	var seen []string
	pages := 0
	for after, more := "", true; more; pages++ {
		done := h.wait(h.submit(opList, listRequest{providerRef: providerRef{provider}, After: after}))
		require.Equal(t, OK, done.status, string(done.payload))
		var page struct {
			Sandboxes []foundReply `json:"sandboxes"`
			More      bool         `json:"more"`
		}
		require.NoError(t, json.Unmarshal(done.payload, &page))
		for _, f := range page.Sandboxes {
			seen = append(seen, f.ID)
			require.Equal(t, foundReply{
				ID: f.ID, Provider: "crowded", Run: "r", Host: "h", PID: 5, Owner: "dead", CreatedAt: 1000.5, Status: "paused",
			}, f)
		}
		after, more = seen[len(seen)-1], page.More
	}
	require.Greater(t, pages, 1)
	require.Len(t, seen, 1000)
	require.IsIncreasing(t, seen)

	done := h.wait(h.submit(opReap, reapRequest{providerRef: providerRef{provider}, ID: "box-0007"}))
	require.Equal(t, OK, done.status, string(done.payload))
	done = h.wait(h.submit(opReap, reapRequest{providerRef: providerRef{provider}}))
	require.Equal(t, OK, done.status, string(done.payload))
	require.Equal(t, []string{"box-0007"}, p.reaped)

	done = h.wait(h.submit(opExamine, providerRef{Provider: provider}))
	require.JSONEq(t, `{"facts":[{"name":"door","value":"open","origin":"nobody","problem":""}]}`, string(done.payload))
}

func TestAProviderThatFindsNothingSaysSo(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	provider, err := l.NewProvider("mem", nil)
	require.NoError(t, err)
	for op, request := range map[uint32]any{opList: listRequest{providerRef: providerRef{provider}}, opReap: reapRequest{providerRef: providerRef{provider}, ID: "x"}} {
		require.Equal(t, kindStatus[core.KindNotSupported], h.wait(h.submit(op, request)).status)
	}
}
