package dispatch

import (
	"errors"
	"io"
	"sync"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// errReaderGone is what a writer gets whose reader closed the stream.
var errReaderGone = errors.New("the reader of this stream has closed it")

// errAborted is what both ends get when the operation was cancelled.
var errAborted = errors.New("the operation was cancelled")

// maxCopy bounds one read or write of the host, so that no call holds its loop.
const maxCopy = 1 << 20

// stream is one end of a command's input or output as the host sees it. Its methods never wait.
type stream interface {
	read(p []byte) (int, Code)
	write(p []byte) (int, Code)
	closeWrite() Code
	close()
}

// hostStream is a stream with its place in the library.
type hostStream struct {
	stream
	bridge *Bridge
	handle Handle
}

// outRing carries a command's output to the host. The command's side writes and waits when the ring is full: that is
// back-pressure. The host reads and never waits: a read that finds nothing arms one edge.
type outRing struct {
	edge func() // tells the host that a read is worth while; called with mu held, must not wait

	mu     sync.Mutex
	room   *sync.Cond // signalled when the host took something, or an end has gone
	data   fifo
	armed  bool
	ended  bool  // no more will be written
	failed error // why writing is refused
}

func newOutRing() *outRing {
	r := &outRing{data: fifo{limit: ringSize}, armed: true}
	r.room = sync.NewCond(&r.mu)
	return r
}

func (r *outRing) wake() {
	if r.armed {
		r.armed = false
		r.edge()
	}
}

// Write is the command's side.
func (r *outRing) Write(p []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.failed != nil {
			return r.failed
		}
		n := r.data.put(p)
		if n > 0 {
			r.wake()
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		r.room.Wait()
	}
}

// end says that everything has been written.
func (r *outRing) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.ended = true
	if r.failed == nil {
		r.failed = io.ErrClosedPipe
	}
	r.wake()
	r.room.Broadcast()
}

// abort refuses further writes and frees those that wait. What is in the ring can still be read.
func (r *outRing) abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil {
		r.failed = errAborted
	}
	r.room.Broadcast()
}

func (r *outRing) read(p []byte) (int, Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := r.data.get(p); n > 0 {
		r.room.Broadcast()
		return n, OK
	}
	if r.ended {
		return 0, EOF
	}
	r.armed = true
	return 0, OK
}

func (r *outRing) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.ended, r.armed = errReaderGone, true, false
	r.data = fifo{limit: ringSize}
	r.room.Broadcast()
}

func (*outRing) write([]byte) (int, Code) { return 0, ErrInvalid }
func (*outRing) closeWrite() Code         { return ErrInvalid }

// inRing carries the host's bytes to a command's input. The host writes and never waits: a write that was not taken
// whole arms one edge. The command's side reads and waits.
type inRing struct {
	edge func() // tells the host that a write is worth while, or in vain; called with mu held, must not wait

	mu     sync.Mutex
	some   *sync.Cond
	data   fifo
	wanted bool // the host has more than it could write
	ended  bool // the host will write no more
	closed bool // the command reads no more
}

func newInRing() *inRing {
	r := &inRing{data: fifo{limit: ringSize}}
	r.some = sync.NewCond(&r.mu)
	return r
}

// Read implements io.Reader for the command's side.
func (r *inRing) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.closed {
			return 0, errAborted
		}
		if n := r.data.get(p); n > 0 {
			// Half a ring of room, so that the host is not woken for crumbs.
			if r.wanted && r.data.free() >= ringSize/2 {
				r.wanted = false
				r.edge()
			}
			return n, nil
		}
		if r.ended {
			return 0, io.EOF
		}
		if len(p) == 0 {
			return 0, nil
		}
		r.some.Wait()
	}
}

// stop says that the command reads no more.
func (r *inRing) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed = true
	r.data = fifo{limit: ringSize}
	if r.wanted {
		r.wanted = false
		r.edge()
	}
	r.some.Broadcast()
}

func (r *inRing) write(p []byte) (int, Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || r.ended {
		return 0, ErrClosed
	}
	n := r.data.put(p)
	if n < len(p) {
		r.wanted = true
	}
	if n > 0 {
		r.some.Signal()
	}
	return n, OK
}

func (r *inRing) closeWrite() Code {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended, r.wanted = true, false
	r.some.Broadcast()
	return OK
}

// close ends the input: a command that was still to read it sees end of file after what was written.
func (r *inRing) close()                { r.closeWrite() }
func (*inRing) read([]byte) (int, Code) { return 0, ErrInvalid }

// collected is an output that was kept while the command ran and is read after it.
type collected struct{ out *core.Output }

func (c collected) read(p []byte) (int, Code) {
	if n := c.out.Next(p); n > 0 {
		return n, OK
	}
	return 0, EOF
}

func (collected) write([]byte) (int, Code) { return 0, ErrInvalid }
func (collected) closeWrite() Code         { return ErrInvalid }
func (c collected) close()                 { c.out.Close() }
