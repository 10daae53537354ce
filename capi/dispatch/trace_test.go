package dispatch

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/mem"
)

// tracing is a provider that notes with which span it is asked.
type tracing struct {
	core.Provider
	seen chan string
}

func (p *tracing) Create(ctx context.Context, spec core.Spec) (core.Instance, error) {
	p.seen <- core.Traceparent(ctx)
	return p.Provider.Create(ctx, spec)
}

func TestTheProviderIsAskedWithTheCallersSpan(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	seen := make(chan string, 3)
	l := newLibrary(t, func(r *core.Registry) {
		factory := mem.NewFactory()
		r.Register("tracing", func(raw json.RawMessage) (core.Provider, error) {
			p, err := factory(raw)
			return &tracing{p, seen}, err
		})
	})
	h := newHost(t, l)
	p, err := l.NewProvider("tracing", nil)
	require.NoError(t, err)
	for want, request := range map[string]object{
		parent: {"provider": p, "spec": object{}, "traceparent": parent},
		"":     {"provider": p, "spec": object{}, "traceparent": "nonsense"},
	} {
		done := h.wait(h.submit(opCreate, request))
		require.Zero(t, done.status)
		require.Equal(t, want, <-seen)
	}
}
