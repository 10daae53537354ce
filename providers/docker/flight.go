package docker

import (
	"context"
	"sync"
)

// flight joins callers that want the same thing at the same time: it is done
// once, for as long as at least one of them waits. When all have given up, the
// work's context ends.
type flight[T any] struct {
	mu    sync.Mutex
	calls map[string]*flightCall[T]
}

type flightCall[T any] struct {
	done    chan struct{}
	value   T
	err     error
	waiters int
	cancel  context.CancelFunc
}

// do runs work under key, or joins the run that is under way.
func (f *flight[T]) do(ctx context.Context, key string, work func(context.Context) (T, error)) (T, error) {
	f.mu.Lock()
	call := f.calls[key]
	if call == nil {
		// Values (a trace) of the first caller are kept, its end is not: others may wait longer.
		own, cancel := context.WithCancel(context.WithoutCancel(ctx))
		call = &flightCall[T]{done: make(chan struct{}), cancel: cancel}
		if f.calls == nil {
			f.calls = map[string]*flightCall[T]{}
		}
		f.calls[key] = call
		go func() { // ends when work does, at the latest soon after the last waiter has gone
			defer cancel()
			value, err := work(own)
			f.mu.Lock()
			defer f.mu.Unlock()
			call.value, call.err = value, err
			f.forget(key, call)
			close(call.done)
		}()
	}
	call.waiters++
	f.mu.Unlock()

	select {
	case <-call.done:
		return call.value, call.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	call.waiters--
	last := call.waiters == 0
	if last {
		call.cancel()
		f.forget(key, call)
	}
	f.mu.Unlock()
	if last {
		// The work has been told to end, and what it leaves is the caller's business: wait for it.
		<-call.done
	}
	var none T
	return none, context.Cause(ctx)
}

// forget makes the next caller start anew. The caller holds f.mu.
func (f *flight[T]) forget(key string, call *flightCall[T]) {
	if f.calls[key] == call {
		delete(f.calls, key)
	}
}
