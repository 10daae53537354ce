package ptyserver

import (
	"sync"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

const (
	firstRing = 4 << 10
	// leastRing is what every session may have, however little memory is left for all:
	// twice the largest piece of output, so that one piece always fits beside one under way.
	leastRing = 2 * proto.MaxChunk
)

// Budget bounds the memory of all rings together. It is safe for concurrent use.
type Budget struct {
	mu    sync.Mutex
	limit int64
	used  int64
}

// NewBudget allows limit bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// take asks for n more bytes; must is granted whatever the limit.
func (b *Budget) take(n int64, must bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !must && b.used+n > b.limit {
		return false
	}
	b.used += n
	return true
}

func (b *Budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
}

// exhausted tells whether rings can't grow any more.
func (b *Budget) exhausted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used >= b.limit
}

// ring keeps the end of a session's output by absolute offset: the byte at
// offset o, start <= o < total, is buf[o % len(buf)]. It grows with what is written.
// The session's lock guards it.
type ring struct {
	budget *Budget
	buf    []byte
	start  int64 // of the oldest byte that is kept
	total  int64 // bytes ever written
}

// reserve makes room to keep n bytes if memory allows, and gives the room there is.
func (r *ring) reserve(n int64) int64 {
	want := int64(max(len(r.buf), firstRing))
	for want < n && want < proto.RingSize {
		want *= 2
	}
	for ; want > int64(len(r.buf)); want /= 2 {
		if r.budget.take(want-int64(len(r.buf)), want <= leastRing) {
			r.grow(int(want))
			break
		}
	}
	return int64(len(r.buf))
}

// grow moves what is kept to a larger buffer.
func (r *ring) grow(size int) {
	bigger := make([]byte, size)
	for o := r.start; o < r.total; {
		at := o % int64(size)
		n := r.copyAt(o, bigger[at:])
		o += int64(n)
	}
	r.buf = bigger
}

// write adds output; what does not fit drives out the oldest.
func (r *ring) write(p []byte) {
	r.reserve(r.total - r.start + int64(len(p)))
	size := int64(len(r.buf))
	for len(p) > 0 {
		n := copy(r.buf[r.total%size:], p)
		r.total += int64(n)
		p = p[n:]
	}
	r.start = max(r.start, r.total-size)
}

// copyAt copies kept bytes from an offset on, until p is full, the output ends
// or the buffer wraps around.
func (r *ring) copyAt(offset int64, p []byte) int {
	if offset < r.start || offset >= r.total {
		return 0
	}
	at := offset % int64(len(r.buf))
	return copy(p, r.buf[at:min(at+r.total-offset, int64(len(r.buf)))])
}

// appendFrom appends everything kept from an offset on, or from the oldest byte
// when that is later, and gives the offset of the first.
func (r *ring) appendFrom(dst []byte, offset int64) ([]byte, int64) {
	offset = min(max(offset, r.start), r.total)
	at := len(dst)
	dst = append(dst, make([]byte, r.total-offset)...)
	for o := offset; o < r.total; {
		n := r.copyAt(o, dst[at:])
		at += n
		o += int64(n)
	}
	return dst, offset
}

// release forgets everything that is kept, but not how much there was.
func (r *ring) release() {
	r.budget.give(int64(len(r.buf)))
	r.buf = nil
	r.start = r.total
}
