package docker

import (
	"context"

	"go.opentelemetry.io/otel/propagation"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// traceparent is a propagator of the span that core put into a context, so that the process's
// own tracing, which belongs to the application, is neither needed nor changed.
type traceparent struct{}

func (traceparent) Inject(ctx context.Context, header propagation.TextMapCarrier) {
	if parent := core.Traceparent(ctx); parent != "" {
		header.Set("traceparent", parent)
	}
}

func (traceparent) Extract(ctx context.Context, _ propagation.TextMapCarrier) context.Context {
	return ctx
}

func (traceparent) Fields() []string { return []string{"traceparent"} }
