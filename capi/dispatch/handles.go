package dispatch

import "sync"

// Handle names an object across the C border: 31 bits of generation, 8 of type, 24 of slot. It is positive as an
// int64, 0 is never one, and a handle whose object is gone stays invalid when the slot is used again.
type Handle int64

// tag is the type of what a handle names.
type tag uint8

const (
	tagBridge tag = iota + 1
	tagStream
	tagProvider
	tagSandbox
	tagTerminal
)

const (
	slotBits = 24
	maxSlots = 1 << slotBits
	maxGen   = 1<<31 - 1
)

type slot struct {
	gen uint32
	tag tag
	val any // nil when free
}

// table maps handles to objects. It is safe for concurrent use.
type table struct {
	mu    sync.RWMutex
	slots []slot
	free  []uint32
	count [tagTerminal + 1]int
}

// add stores v; 0 means that the table is full.
func (t *table) add(tg tag, v any) Handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	if n := len(t.free); n > 0 {
		i = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		if len(t.slots) == maxSlots {
			return 0
		}
		i = uint32(len(t.slots))
		t.slots = append(t.slots, slot{})
	}
	s := &t.slots[i]
	s.gen++
	s.tag, s.val = tg, v
	t.count[tg]++
	return Handle(uint64(s.gen)<<32 | uint64(tg)<<slotBits | uint64(i))
}

// find gives the slot of a live handle, or nil. The lock is held.
func (t *table) find(h Handle) *slot {
	i := uint64(h) & (maxSlots - 1)
	if h <= 0 || i >= uint64(len(t.slots)) {
		return nil
	}
	s := &t.slots[i]
	if s.val == nil || uint64(s.gen) != uint64(h)>>32 || uint64(s.tag) != uint64(h)>>slotBits&0xff {
		return nil
	}
	return s
}

func (t *table) get(h Handle) any {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if s := t.find(h); s != nil {
		return s.val
	}
	return nil
}

// remove forgets a handle and gives what it named, or nil when it is already gone.
func (t *table) remove(h Handle) any {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.find(h)
	if s == nil {
		return nil
	}
	v := s.val
	s.val = nil
	t.count[s.tag]--
	if s.gen < maxGen { // a slot that has used up its generations is retired
		t.free = append(t.free, uint32(uint64(h)&(maxSlots-1)))
	}
	return v
}

// all lists the live objects of one type.
func (t *table) all(tg tag) []any {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []any
	for i := range t.slots {
		if s := &t.slots[i]; s.val != nil && s.tag == tg {
			out = append(out, s.val)
		}
	}
	return out
}

func (t *table) counts() (bridges, streams, providers, sandboxes, terminals int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.count[tagBridge], t.count[tagStream], t.count[tagProvider], t.count[tagSandbox], t.count[tagTerminal]
}

// lookup finds an object of a type by handle.
func lookup[T any](t *table, h Handle) (T, bool) {
	v, ok := t.get(h).(T)
	return v, ok
}
