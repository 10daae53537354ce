package dispatch

// ringSize is the most that a stream holds, and so the mark at which its writer waits: large enough for a few pipe
// buffers per wake-up of the host, small enough for hundreds of streams.
const ringSize = 256 << 10

// firstRing is what a stream's memory starts with: most commands print little.
const firstRing = 8 << 10

// fifo is a ring of bytes that grows up to a limit. Its owner locks it.
type fifo struct {
	buf   []byte
	r, n  int // n bytes from position r on
	limit int
}

func (f *fifo) free() int { return f.limit - f.n }

// put takes what there is room for.
func (f *fifo) put(p []byte) int {
	p = p[:min(len(p), f.free())]
	if need := f.n + len(p); need > len(f.buf) {
		size := max(len(f.buf), firstRing)
		for size < need {
			size *= 2
		}
		grown := make([]byte, min(size, f.limit))
		f.peek(grown)
		f.buf, f.r = grown, 0
	}
	if len(p) == 0 {
		return 0
	}
	w := (f.r + f.n) % len(f.buf)
	m := copy(f.buf[w:], p)
	copy(f.buf, p[m:])
	f.n += len(p)
	return len(p)
}

// peek copies the oldest bytes without taking them.
func (f *fifo) peek(p []byte) int {
	p = p[:min(len(p), f.n)]
	if len(p) == 0 {
		return 0
	}
	m := copy(p, f.buf[f.r:min(f.r+f.n, len(f.buf))])
	copy(p[m:], f.buf)
	return len(p)
}

func (f *fifo) get(p []byte) int {
	n := f.peek(p)
	if n > 0 {
		f.r = (f.r + n) % len(f.buf)
		f.n -= n
	}
	return n
}
