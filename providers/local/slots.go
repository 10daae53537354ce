package local

import (
	"context"
	"sync"
)

// slots bounds how many commands run at once; nil means no bound.
type slots chan struct{}

// shared holds the slots by their number: providers that are configured with the
// same number share them, since what they protect is this machine.
var shared = struct {
	sync.Mutex
	byNumber map[int]slots
}{byNumber: map[int]slots{}}

func sharedSlots(n *int) slots {
	if n == nil {
		return nil
	}
	shared.Lock()
	defer shared.Unlock()
	s, ok := shared.byNumber[*n]
	if !ok {
		s = make(slots, *n)
		shared.byNumber[*n] = s
	}
	return s
}

// take waits for a slot. The caller gives it back.
func (s slots) take(ctx context.Context) error {
	if s == nil {
		return nil
	}
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s slots) give() {
	if s != nil {
		<-s
	}
}
