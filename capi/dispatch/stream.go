package dispatch

import (
	"context"
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
	// failure is why the last read or write answered ErrFailed.
	failure() error
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
	fault  error // what the reader gets behind the data, before it can go on
	ended  bool  // no more will be written
	reason error // why not, when that is not the command's end
	last   error // what the reader was told
	failed error // why writing is refused
}

func newOutRing(limit int) *outRing {
	r := &outRing{data: fifo{limit: limit}, armed: true}
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
		n := 0
		if r.fault == nil {
			n = r.data.put(p)
		}
		if n > 0 {
			r.wake()
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		r.room.Wait()
	}
}

// tryWrite is Write without waiting; it tells how much was taken.
func (r *outRing) tryWrite(p []byte) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed != nil || r.fault != nil {
		return 0
	}
	n := r.data.put(p)
	if n > 0 {
		r.wake()
	}
	return n
}

// interrupt makes a read fail once, behind what has been written and before what will be.
func (r *outRing) interrupt(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.fault != nil && r.failed == nil {
		r.room.Wait()
	}
	if r.failed == nil {
		r.fault = err
		r.wake()
	}
}

// end says that everything has been written. With a reason the reader does not see a clean end.
func (r *outRing) end(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	r.ended, r.reason = true, reason
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
	switch {
	case r.fault != nil:
		r.last, r.fault = r.fault, nil
		r.room.Broadcast()
		return 0, ErrFailed
	case r.ended && r.reason != nil:
		r.last = r.reason
		return 0, ErrFailed
	case r.ended:
		return 0, EOF
	}
	r.armed = true
	return 0, OK
}

func (r *outRing) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *outRing) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.ended, r.armed = errReaderGone, true, false
	r.data = fifo{limit: r.data.limit}
	r.room.Broadcast()
}

func (*outRing) write([]byte) (int, Code) { return 0, ErrInvalid }
func (*outRing) closeWrite() Code         { return ErrInvalid }

// inRing carries the host's bytes to a command's input. The host writes and never waits: a write that was not taken
// whole arms one edge. The command's side reads and waits.
type inRing struct {
	edge func() // tells the host that a write is worth while, or in vain; called with mu held, must not wait
	// direct, when set, takes what it can of what the host writes when nothing else is under way. It must not wait either.
	direct func(p []byte) (int, error)

	mu     sync.Mutex
	some   *sync.Cond
	idle   *sync.Cond // signalled when the command's side is done with all that was written
	data   fifo
	taken  bool  // the command's side is not done with what it took
	wanted bool  // the host has more than it could write
	ended  bool  // the host will write no more
	closed bool  // the command reads no more
	reason error // why not, when there is more to say than that
	fault  error // what the host's next write is told
	last   error // what it was told
}

func newInRing() *inRing {
	r := &inRing{data: fifo{limit: ringSize}}
	r.some, r.idle = sync.NewCond(&r.mu), sync.NewCond(&r.mu)
	return r
}

// Read implements io.Reader for the command's side.
func (r *inRing) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = false
	for {
		if r.closed {
			return 0, errAborted
		}
		if n := r.data.get(p); n > 0 {
			r.taken = true
			// Half a ring of room, so that the host is not woken for crumbs.
			if r.data.free() >= ringSize/2 {
				r.nudge()
			}
			return n, nil
		}
		if r.ended {
			return 0, io.EOF
		}
		if len(p) == 0 {
			return 0, nil
		}
		r.idle.Broadcast()
		r.some.Wait()
	}
}

// stop says that the command reads no more.
func (r *inRing) stop() { r.refuse(nil) }

// Close implements io.Closer for the command's side: it has ended, which ends a Read under way.
func (r *inRing) Close() error {
	r.stop()
	return nil
}

// refuse does so and says why.
func (r *inRing) refuse(reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	r.closed, r.reason = true, reason
	r.data = fifo{limit: ringSize}
	r.nudge()
	r.some.Broadcast()
	r.idle.Broadcast()
}

// drop makes the host's next write fail: something that it wrote got lost.
func (r *inRing) drop(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault = err
	r.nudge()
}

// nudge wakes a host that waits to write. mu is held.
func (r *inRing) nudge() {
	if r.wanted {
		r.wanted = false
		r.edge()
	}
}

// settle waits until everything that was written has been taken and dealt with, or the context ends.
func (r *inRing) settle(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.idle.Broadcast()
	})
	defer stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.closed && (r.taken || r.data.n > 0) && ctx.Err() == nil {
		r.idle.Wait()
	}
}

func (r *inRing) write(p []byte) (int, Code) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.fault != nil:
		r.last, r.fault = r.fault, nil
		return 0, ErrFailed
	case r.closed && r.reason != nil:
		r.last = r.reason
		return 0, ErrFailed
	case r.closed || r.ended:
		return 0, ErrClosed
	}
	taken := 0
	if r.direct != nil && !r.taken && r.data.n == 0 {
		var err error
		if taken, err = r.direct(p); err != nil {
			r.last = err
			return 0, ErrFailed
		}
		if p = p[taken:]; len(p) == 0 {
			return taken, OK
		}
	}
	n := r.data.put(p)
	if n < len(p) {
		r.wanted = true
	}
	if n > 0 {
		r.some.Signal()
	}
	return taken + n, OK
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

func (r *inRing) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

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
func (collected) failure() error           { return nil }
func (c collected) close()                 { c.out.Close() }
