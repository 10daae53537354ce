package dispatch

import "encoding/binary"

// The kinds of events.
const (
	EventDone       uint16 = 1 // an operation is over; id is the operation
	EventReadable   uint16 = 2 // a stream has something to read, or has ended; id is the stream
	EventWritable   uint16 = 3 // a stream takes bytes again, or was closed by its reader; id is the stream
	EventStreamOpen uint16 = 4 // id is the operation, aux the command's descriptor (0, 1, 2), the payload the stream's handle
	EventLog        uint16 = 6 // a record of the library's log; id is 0
)

// The flags of events.
const (
	FlagJSON   uint16 = 1 << 1 // the payload is JSON
	FlagFramed uint16 = 1 << 2 // the payload is u32 length, JSON of that length, then the bytes that the JSON describes
)

const (
	// HeaderSize is the size of an event before its payload.
	HeaderSize = 24
	// MaxEvent bounds one event, header and padding included: a drain buffer of this size takes any.
	MaxEvent = 128 << 10
	// maxPayload is what fits into one event.
	maxPayload = MaxEvent - HeaderSize - 8
	// softDrain ends a drain that has taken this much, so that a host's loop is not held for long.
	softDrain = 16 << 10
	// idleQueue is how much memory an empty queue keeps.
	idleQueue = 256 << 10
)

type event struct {
	id      uint64
	kind    uint16
	flags   uint16
	status  Code
	aux     uint32
	payload []byte
}

// queue holds encoded events, oldest first. Its owner locks it.
type queue struct {
	buf  []byte
	head int
}

func (q *queue) empty() bool { return q.head == len(q.buf) }

func padded(n int) int { return (n + 7) &^ 7 }

func (q *queue) push(e event) {
	var h [HeaderSize]byte
	binary.LittleEndian.PutUint64(h[0:], e.id)
	binary.LittleEndian.PutUint32(h[8:], uint32(len(e.payload)))
	binary.LittleEndian.PutUint16(h[12:], e.kind)
	binary.LittleEndian.PutUint16(h[14:], e.flags)
	binary.LittleEndian.PutUint32(h[16:], uint32(e.status))
	binary.LittleEndian.PutUint32(h[20:], e.aux)
	q.buf = append(q.buf, h[:]...)
	q.buf = append(q.buf, e.payload...)
	var zero [8]byte
	q.buf = append(q.buf, zero[:padded(len(e.payload))-len(e.payload)]...)
}

// pop copies whole events into p. It tells how many bytes it wrote and how many DONE and LOG events they hold; n is 0
// with a queue that is not empty when p is too small for the next event.
func (q *queue) pop(p []byte) (n, done, logs int) {
	for !q.empty() && n < softDrain {
		e := q.buf[q.head:]
		size := HeaderSize + padded(int(binary.LittleEndian.Uint32(e[8:])))
		if size > len(p)-n {
			break
		}
		switch binary.LittleEndian.Uint16(e[12:]) {
		case EventDone:
			done++
		case EventLog:
			logs++
		}
		copy(p[n:], e[:size])
		n += size
		q.head += size
	}
	switch {
	case q.empty() && cap(q.buf) > idleQueue:
		q.buf, q.head = nil, 0
	case q.empty():
		q.buf, q.head = q.buf[:0], 0
	case q.head > len(q.buf)/2 && q.head > idleQueue:
		q.buf = append([]byte(nil), q.buf[q.head:]...)
		q.head = 0
	}
	return n, done, logs
}
