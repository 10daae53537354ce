package core

import (
	"context"
	"sync/atomic"
)

type retriesKey struct{}

// WithRetries gives a context in which a provider counts the attempts that it repeats, and the count.
func WithRetries(ctx context.Context) (context.Context, *atomic.Int64) {
	n := new(atomic.Int64)
	return context.WithValue(ctx, retriesKey{}, n), n
}

// CountRetry notes one repeated attempt, where somebody counts.
func CountRetry(ctx context.Context) {
	if n, ok := ctx.Value(retriesKey{}).(*atomic.Int64); ok {
		n.Add(1)
	}
}
