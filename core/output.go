package core

import (
	"encoding/binary"
	"fmt"
	"sync"
	"syscall"
)

const (
	// smallOutput stays on the Go heap: most commands print less, and a map costs two system calls.
	smallOutput = 32 << 10
	// segmentSize is how much larger outputs grow by, and so the most that a
	// reader holds twice while it copies the output out.
	segmentSize = 1 << 20
)

// Collector is a Sink that keeps both streams. Outputs beyond a few KiB lie
// outside the Go heap, so that hundreds of MiB cost neither garbage collection nor a second copy.
type Collector struct {
	out [2]Output
}

// NewCollector makes a Collector that keeps at most limit bytes of each stream
// (head and tail, see Output.Omitted); 0 means all.
func NewCollector(limit int64) *Collector {
	c := &Collector{}
	c.out[Stdout].limit, c.out[Stderr].limit = limit, limit
	return c
}

// Write implements Sink.
func (c *Collector) Write(s Stream, p []byte) error {
	c.out[s].write(p)
	return nil
}

// Output gives one collected stream.
func (c *Collector) Output(s Stream) *Output { return &c.out[s] }

// Close releases what was not read. Idempotent.
func (c *Collector) Close() {
	c.out[Stdout].Close()
	c.out[Stderr].Close()
}

// Output is one collected stream: written by one goroutine, then read once.
// Safe for concurrent use.
type Output struct {
	mu       sync.Mutex
	head     []segment // the first half of the limit, or everything
	size     int64     // bytes in head
	limit    int64
	nonASCII bool

	tail     []segment // what came after the head, oldest first
	tailSize int64
	omitted  int64
	sealed   bool // reading has begun
}

// write appends p. After Close it drops p: a command may still print while its caller has gone.
func (o *Output) write(p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sealed {
		return
	}
	if !o.nonASCII && !isASCII(p) {
		o.nonASCII = true
	}
	room := int64(len(p))
	if o.limit > 0 {
		room = min(room, max(o.limit/2-o.size, 0))
	}
	o.head = appendSegments(o.head, p[:room])
	o.size += room
	if rest := p[room:]; len(rest) > 0 {
		o.tail = appendSegments(o.tail, rest)
		o.tailSize += int64(len(rest))
		for len(o.tail) > 1 && o.tailSize-o.tail[0].len() >= o.tailLimit() {
			o.dropTail(o.tail[0].len())
		}
	}
}

func (o *Output) tailLimit() int64 { return o.limit - o.limit/2 }

// dropTail forgets the oldest n bytes of the tail; n is at most the first segment's length.
func (o *Output) dropTail(n int64) {
	o.tailSize -= n
	o.omitted += n
	if o.tail[0].r += int(n); o.tail[0].len() == 0 {
		o.tail[0].free()
		o.tail = o.tail[1:]
	}
}

// seal ends writing: the kept tail is trimmed to the limit and joined behind
// the head, with a line between them that tells how much is missing.
func (o *Output) seal() {
	if o.sealed {
		return
	}
	o.sealed = true
	if over := o.tailSize - o.tailLimit(); len(o.tail) > 0 && over > 0 {
		o.dropTail(over)
	}
	if o.omitted > 0 {
		note := fmt.Appendf(nil, "\n... %d bytes omitted ...\n", o.omitted)
		o.head = append(o.head, segment{mem: note, w: len(note)})
		o.size += int64(len(note))
	}
	o.head = append(o.head, o.tail...)
	o.size += o.tailSize
	o.tail, o.tailSize = nil, 0
}

// Len is how many bytes are left to read. It ends the writing.
func (o *Output) Len() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seal()
	return o.size
}

// ASCII tells whether everything written was 7-bit. It ends the writing.
func (o *Output) ASCII() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seal()
	return !o.nonASCII
}

// Omitted is how many bytes between head and tail were dropped to keep the limit. It ends the writing.
func (o *Output) Omitted() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seal()
	return o.omitted
}

// Next copies the next bytes into p, frees what has been copied, and returns
// how many there were; 0 means the end. It ends the writing.
func (o *Output) Next(p []byte) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seal()
	n := 0
	for n < len(p) && len(o.head) > 0 {
		s := &o.head[0]
		m := copy(p[n:], s.mem[s.r:s.w])
		n += m
		if s.r += m; s.len() == 0 {
			s.free()
			o.head = o.head[1:]
		}
	}
	o.size -= int64(n)
	return n
}

// String reads all that is left.
func (o *Output) String() string {
	p := make([]byte, o.Len())
	return string(p[:o.Next(p)])
}

// Close frees what was not read. Idempotent.
func (o *Output) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sealed = true
	for i := range o.head {
		o.head[i].free()
	}
	for i := range o.tail {
		o.tail[i].free()
	}
	o.head, o.tail, o.size, o.tailSize = nil, nil, 0, 0
}

// segment is a piece of an output: mem[r:w] is unread, mem[w:] is free.
type segment struct {
	mem    []byte
	r, w   int
	mapped bool
}

func (s *segment) len() int64 { return int64(s.w - s.r) }

func (s *segment) free() {
	if s.mapped {
		// It fails only for an address that Mmap did not give, which would be a fault here.
		_ = syscall.Munmap(s.mem)
	}
	s.mem, s.r, s.w = nil, 0, 0
}

// appendSegments adds p to a list of segments, filling the last one first. The
// first segment starts small, on the Go heap, and grows there until mapping pays.
func appendSegments(segs []segment, p []byte) []segment {
	if len(p) == 0 {
		return segs
	}
	if len(segs) == 0 && len(p) <= smallOutput {
		return append(segs, segment{mem: append([]byte(nil), p...), w: len(p)})
	}
	if len(segs) == 1 && !segs[0].mapped && segs[0].w+len(p) <= smallOutput {
		s := &segs[0]
		s.mem = append(s.mem[:s.w], p...)
		s.w = len(s.mem)
		return segs
	}
	for len(p) > 0 {
		last := len(segs) - 1
		if last < 0 || segs[last].w == len(segs[last].mem) {
			segs = append(segs, mapSegment())
			last++
		}
		s := &segs[last]
		n := copy(s.mem[s.w:], p)
		s.w += n
		p = p[n:]
	}
	return segs
}

// mapSegment gets an empty segment outside the Go heap, or on it when the
// system has no mapping left to give.
func mapSegment() segment {
	m, err := syscall.Mmap(-1, 0, segmentSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return segment{mem: make([]byte, segmentSize)}
	}
	return segment{mem: m, mapped: true}
}

// isASCII looks at eight bytes at a time.
func isASCII(p []byte) bool {
	for len(p) >= 8 {
		if binary.LittleEndian.Uint64(p)&0x8080808080808080 != 0 {
			return false
		}
		p = p[8:]
	}
	for _, b := range p {
		if b >= 0x80 {
			return false
		}
	}
	return true
}
