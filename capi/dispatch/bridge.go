package dispatch

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// maxLive bounds the operations of a bridge whose result the host has not taken.
const maxLive = 4096

// maxLogs bounds the log records that wait in a bridge; further ones are dropped.
const maxLogs = 256

// errHostCanceled is the cause of a context that the host cancelled.
var errHostCanceled = errors.New("canceled by the caller")

// Bridge is one host loop's door to the library: operations go in, events come out. Its methods can be called from any
// goroutine; only one at a time should drain.
type Bridge struct {
	lib    *Library
	handle Handle

	// mu guards all below. It is held for short copies and a non-blocking write to the descriptor only. Streams post
	// edges with their own lock held, so it is taken after a stream's, and no stream is called with it held.
	mu      sync.Mutex
	fd      int // an eventfd that is readable while events wait; -1 when closed
	events  queue
	ops     map[uint64]*operation
	live    int // operations accepted whose DONE was not drained
	logs    int // log records that were not drained
	streams map[Handle]*hostStream
	terms   map[Handle]*terminal
	notify  func()
	closed  bool
	late    int // events that came after the close
}

// operation is one accepted request.
type operation struct {
	bridge *Bridge
	id     uint64
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// reply is what a successful operation answers.
type reply struct {
	payload []byte
	flags   uint16
	aux     uint32
	// undo takes back what the operation made. It is called when the host can't be told of it.
	undo func()
}

// handler serves one operation code. It may block until its operation's context ends.
type handler func(o *operation, req []byte) (reply, error)

func newBridge(l *Library) (*Bridge, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &Bridge{lib: l, fd: fd, ops: map[uint64]*operation{}, streams: map[Handle]*hostStream{}, terms: map[Handle]*terminal{}}, nil
}

// Descriptor is readable while events wait. It belongs to the bridge.
func (b *Bridge) Descriptor() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fd
}

// SetNotify makes f be called whenever the queue becomes non-empty, and once now if it is not empty; nil ends that.
// f is called with the bridge's lock held: it must not wait, nor call the bridge.
func (b *Bridge) SetNotify(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.notify = f
	if f != nil && !b.events.empty() {
		f()
	}
}

// Submit starts an operation under an id of the caller's choice. Every accepted operation ends in exactly one DONE event.
func (b *Bridge) Submit(id uint64, code uint32, req []byte) Code {
	h, ok := handlers[code]
	if !ok || code == opTest && !b.lib.testHooks {
		return ErrInvalid
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed
	}
	if b.live >= maxLive && code != opStop && code != opPTYClose { // what frees something is never refused
		return ErrAgain
	}
	if _, taken := b.ops[id]; taken {
		return ErrExists
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	o := &operation{bridge: b, id: id, ctx: ctx, cancel: cancel}
	b.ops[id] = o
	b.live++
	own := append([]byte(nil), req...)
	b.lib.running.Add(1)
	b.lib.safeGo(func() {
		defer b.lib.running.Done()
		o.run(h, own)
	})
	return OK
}

// run serves the operation and posts its DONE, whatever happens.
func (o *operation) run(h handler, req []byte) {
	var rep reply
	o.ctx = traced(o.ctx, req)
	err := o.bridge.lib.guard(func() (err error) {
		rep, err = h(o, req)
		if err == nil && len(rep.payload) > maxPayload {
			if rep.undo != nil {
				rep.undo()
			}
			return core.Errorf(core.KindInternal, "", "the answer of %d bytes is too large", len(rep.payload))
		}
		return err
	})
	done := event{id: o.id, kind: EventDone, flags: rep.flags, aux: rep.aux, payload: rep.payload}
	if err != nil {
		status, payload := describe(err)
		done = event{id: o.id, kind: EventDone, flags: FlagJSON, status: status, payload: payload}
	}
	o.cancel(nil)
	b := o.bridge
	b.mu.Lock()
	delete(b.ops, o.id)
	posted := b.push(done)
	b.mu.Unlock()
	if !posted && err == nil && rep.undo != nil {
		_ = b.lib.guard(func() error { rep.undo(); return nil }) // nobody is left to tell
	}
}

// Cancel ends an operation's context; its DONE still comes. An id that is not in flight is no error.
func (b *Bridge) Cancel(id uint64) Code {
	b.mu.Lock()
	o, closed := b.ops[id], b.closed
	b.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if o != nil {
		o.cancel(errHostCanceled)
	}
	return OK
}

// push adds an event; false means that the bridge is closed and the event lost. mu is held.
func (b *Bridge) push(e event) bool {
	if b.closed {
		b.late++
		return false
	}
	was := b.events.empty()
	b.events.push(e)
	if was {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		_, _ = unix.Write(b.fd, one[:]) // a full counter is readable as well
		if b.notify != nil {
			b.notify()
		}
	}
	return true
}

// Drain copies whole events into p, at most about 16 KiB of them unless the first is larger, and gives their size. The
// descriptor stays readable while events are left.
func (b *Bridge) Drain(p []byte) (int, Code) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, ErrClosed
	}
	n, done, logs := b.events.pop(p)
	b.live -= done
	b.logs -= logs
	if b.events.empty() {
		var sink [8]byte
		_, _ = unix.Read(b.fd, sink[:]) // nothing to read is what is wanted
		return n, OK
	}
	if n == 0 {
		return 0, ErrTooSmall
	}
	if b.notify != nil {
		b.notify()
	}
	return n, OK
}

// openStream gives the host a handle for a stream of an operation. prepare is told the handle before anybody else. With
// announce the host gets a STREAM_OPEN event for descriptor fd of the command.
func (b *Bridge) openStream(o *operation, s stream, prepare func(Handle), announce bool, fd uint32) (Handle, error) {
	hs := &hostStream{stream: s, bridge: b}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, errHostCanceled
	}
	hs.handle = b.lib.table.add(tagStream, hs)
	if hs.handle == 0 {
		return 0, errors.New("too many streams are open")
	}
	b.streams[hs.handle] = hs
	prepare(hs.handle)
	if announce {
		payload := binary.LittleEndian.AppendUint64(nil, uint64(hs.handle))
		b.push(event{id: o.id, kind: EventStreamOpen, aux: fd, payload: payload})
	}
	return hs.handle, nil
}

// edge posts READABLE or WRITABLE for a stream.
func (b *Bridge) edge(h Handle, kind uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.push(event{id: uint64(h), kind: kind})
}

func (b *Bridge) closeStream(hs *hostStream) {
	b.lib.table.remove(hs.handle)
	b.mu.Lock()
	delete(b.streams, hs.handle)
	b.mu.Unlock()
	hs.close()
}

// log posts a record unless too many wait; false means that it was not taken.
func (b *Bridge) log(payload []byte) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || b.logs >= maxLogs {
		return false
	}
	b.logs++
	return b.push(event{kind: EventLog, flags: FlagJSON, payload: payload})
}

// close cancels what is in flight, lets go of terminals, drops what was not drained and frees the descriptor. Idempotent.
func (b *Bridge) close() {
	b.lib.forget(b)
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return
	}
	b.closed = true
	ops, streams, terms := b.ops, b.streams, b.terms
	b.ops, b.streams, b.terms = map[uint64]*operation{}, map[Handle]*hostStream{}, map[Handle]*terminal{}
	b.events, b.notify = queue{}, nil
	_ = unix.Close(b.fd)
	b.fd = -1
	b.mu.Unlock()
	for _, o := range ops {
		o.cancel(errHostCanceled)
	}
	for _, t := range terms {
		t.letGo()
	}
	for _, hs := range streams {
		b.lib.table.remove(hs.handle)
		hs.close()
	}
}
