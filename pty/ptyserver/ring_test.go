package ptyserver

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// The model of a ring is all output ever written: whatever the ring keeps must
// be its end, at least as much as was promised, at the offset that it says.
func TestRingKeepsTheEndOfTheOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := NewBudget(rapid.Int64Range(0, 3<<20).Draw(t, "budget"))
		r := &ring{budget: budget}
		other := int64(0) // taken by other sessions
		var all []byte
		kept := int64(0) // the least that must be kept
		next := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				p := make([]byte, rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, proto.MaxChunk), rapid.Just(proto.MaxChunk)).Draw(t, "n"))
				for i := range p {
					p[i] = next
					next++
					if next == 251 { // prime, so that no power of two hides a shift
						next = 0
					}
				}
				r.write(p)
				all = append(all, p...)
				kept = min(kept+int64(len(p)), max(leastRing, int64(len(r.buf))))
			},
			"reserve": func(t *rapid.T) {
				n := rapid.Int64Range(0, 2*proto.RingSize).Draw(t, "n")
				got := r.reserve(n)
				if got < min(n, leastRing) || got > proto.RingSize || got != int64(len(r.buf)) {
					t.Fatalf("reserve(%d) gave %d, the buffer has %d", n, got, len(r.buf))
				}
			},
			"release": func(*rapid.T) { r.release(); kept = 0 },
			"others": func(t *rapid.T) {
				if n := rapid.Int64Range(0, 1<<20).Draw(t, "n"); budget.take(n, false) {
					other += n
				}
			},
			"": func(t *rapid.T) {
				if r.total != int64(len(all)) {
					t.Fatalf("total is %d after %d bytes", r.total, len(all))
				}
				since := rapid.Int64Range(-10, r.total+10).Draw(t, "since")
				got, from := r.appendFrom([]byte("x"), since)
				if got[0] != 'x' || !bytes.Equal(got[1:], all[from:]) {
					t.Fatalf("from %d: %d bytes that are not the output's end", from, len(got)-1)
				}
				if from != min(max(since, r.start), r.total) || r.total-r.start < kept {
					t.Fatalf("from %d instead of %d, keeps %d of at least %d", from, since, r.total-r.start, kept)
				}
				if budget.used != other+int64(len(r.buf)) || (budget.used > budget.limit && len(r.buf) > leastRing) {
					t.Fatalf("the budget says %d of %d; the ring has %d, others %d", budget.used, budget.limit, len(r.buf), other)
				}
			},
		})
	})
}
