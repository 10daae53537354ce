package core

import (
	"context"
	"fmt"
	"sort"
	"time"
)

// Janitor is a Provider that finds and ends sandboxes which it did not make itself, so that what a killed process left
// can be cleared away.
type Janitor interface {
	// List finds the sandboxes of this backend that this project made, by whatever process, and what is left of ended ones.
	List(ctx context.Context) ([]Found, error)
	// Reap ends the sandbox and removes everything of it. One that is gone is success. It does not ask whether
	// anybody uses it: see Survey.
	Reap(ctx context.Context, id string) error
}

// Located is a Provider whose backend has an address.
type Located interface {
	// Location is the backend's address, without secrets.
	Location() string
}

// HandoverTimeouter is a Provider that says how long a sandbox waits for its next user once it was serialized; 0 is for
// ever. Others use DefaultHandoverTimeout.
type HandoverTimeouter interface {
	HandoverTimeout() time.Duration
}

// DefaultHandoverTimeout is for how long a serialized sandbox waits for its next user.
const DefaultHandoverTimeout = time.Hour

// Found is a sandbox as others see it.
type Found struct {
	ID         string
	Provider   string
	Owner      Owner
	OwnerState OwnerState
	Created    time.Time // zero when it can't be told
	Expires    time.Time // when its ttl is over; zero: never
	Status     Status
	User       string // whose it is, where the backend keeps that
	// Leftover: there is nothing but files of it.
	Leftover bool
	// Kept says why nobody but its users should end it; "" means that it can be reaped. Survey fills it in.
	Kept string
}

// expiryGrace is what a sandbox gets to end by itself when its ttl is over, and what clocks may differ by.
const expiryGrace = time.Minute

// Survey lists a provider's sandboxes and decides which of them can be reaped: those whose owner is dead and that nobody
// has taken up or may still take up, and those that outlived their ttl. Sorted by id.
func Survey(ctx context.Context, p Provider) ([]Found, error) {
	j, err := janitor(p)
	if err != nil {
		return nil, err
	}
	found, err := j.List(ctx)
	if err != nil {
		return nil, WithSandbox(err, KindSandbox, "list", p.Name(), "")
	}
	now := time.Now()
	ledgers := readLedgers()
	for i := range found {
		f := &found[i]
		f.Kept = kept(*f, ledgers.claims(claimKey{f.Provider, f.ID}), now)
	}
	sort.Slice(found, func(a, b int) bool { return found[a].ID < found[b].ID })
	return found, nil
}

// Reap ends one sandbox, whoever uses it, and forgets what dead processes noted about it.
func Reap(ctx context.Context, p Provider, id string) error {
	j, err := janitor(p)
	if err != nil {
		return err
	}
	return WithSandbox(j.Reap(ctx, id), KindSandbox, "reap", p.Name(), id)
}

// Tidy forgets what dead processes noted about sandboxes of this provider that are gone.
func Tidy(ctx context.Context, p Provider) error {
	j, err := janitor(p)
	if err != nil {
		return err
	}
	// Read first: what is noted later may be missing in an older list.
	ledgers := readLedgers()
	found, err := j.List(ctx)
	if err != nil {
		return WithSandbox(err, KindSandbox, "list", p.Name(), "")
	}
	there := map[claimKey]bool{}
	for _, f := range found {
		there[claimKey{f.Provider, f.ID}] = true
	}
	ledgers.forget(func(c claim) bool {
		return c.Provider == p.Name() && c.Location == location(p) && !there[c.key()]
	})
	return nil
}

func janitor(p Provider) (Janitor, error) {
	if j, ok := p.(Janitor); ok {
		return j, nil
	}
	return nil, Errorf(KindNotSupported, "list", "provider %s can't find the sandboxes of other processes", p.Name())
}

func location(p Provider) string {
	if l, ok := p.(Located); ok {
		return l.Location()
	}
	return ""
}

// kept says why a sandbox is not to be reaped, "" when it is.
func kept(f Found, claims []claimOf, now time.Time) string {
	ended := f.Leftover || f.Status == StatusStopped
	if !f.Expires.IsZero() && now.After(f.Expires.Add(expiryGrace)) && !ended {
		return "" // its own clock should have ended it, and could not: it was paused, or it hangs
	}
	if f.OwnerState == OwnerAlive {
		return fmt.Sprintf("its owner lives (process %d)", f.Owner.PID)
	}
	for _, c := range claims {
		if c.held && c.state != OwnerDead && !ended {
			return fmt.Sprintf("process %d on %s has taken it up", c.owner.PID, c.owner.Host)
		}
	}
	for _, c := range claims {
		switch {
		case c.handed.IsZero() || ended:
		case c.wait == 0:
			return "it was handed over for as long as it takes"
		case now.Before(c.handed.Add(c.wait)):
			return "it was handed over and can be taken up until " + c.handed.Add(c.wait).UTC().Format(time.RFC3339)
		}
	}
	if f.OwnerState == OwnerUnknown {
		return "whether its owner lives can't be seen from here"
	}
	return ""
}
