package dispatch

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// terminalRing is how much output of a terminal waits for the host here; its session holds some more.
	terminalRing = 64 << 10
	// typedPiece is the most that is typed at once.
	typedPiece = 16 << 10
	// settleTimeout bounds the wait for what was typed before something that must not overtake it. A process that does
	// not read must not be out of reach of signals.
	settleTimeout = 250 * time.Millisecond
	// closeTimeout bounds the end of a session, which goes on when its caller gives up.
	closeTimeout = 10 * time.Second
)

// errLetGo is for whoever still waits for a session whose host has gone.
var errLetGo = errors.New("nobody uses it any more")

// terminal is a terminal session with the host's streams of it. Goroutines move bytes between the two: the host's reads
// and writes never wait, and need no operation.
type terminal struct {
	bridge  *Bridge
	handle  Handle
	sandbox *core.Sandbox
	session core.PTYSession
	in      *inRing
	out     [2]*outRing
	streams [3]Handle
	ctx     context.Context // ends with the terminal
	stop    context.CancelFunc

	mu       sync.Mutex
	detached bool
	paused   bool          // with its sandbox
	moved    chan struct{} // closed when one of these changes
}

// newTerminal gives the host a handle of a session, and streams.
func newTerminal(o *operation, sb *core.Sandbox, session core.PTYSession) (*terminal, error) {
	b := o.bridge
	t := &terminal{
		bridge: b, sandbox: sb, session: session, in: newInRing(),
		out: [2]*outRing{newOutRing(terminalRing), newOutRing(terminalRing)}, moved: make(chan struct{}),
	}
	t.ctx, t.stop = context.WithCancel(context.Background())
	for i, s := range []stream{t.in, t.out[0], t.out[1]} {
		h, err := b.openStream(o, s, func(h Handle) {
			if i == 0 {
				t.in.edge = func() { b.edge(h, EventWritable) }
			} else {
				t.out[i-1].edge = func() { b.edge(h, EventReadable) }
			}
		}, false, 0)
		if err != nil {
			t.end()
			return nil, core.Errorf(core.KindInternal, "pty", "the session can't be handed over: %w", err)
		}
		t.streams[i] = h
	}
	b.mu.Lock()
	if !b.closed {
		if t.handle = b.lib.table.add(tagTerminal, t); t.handle != 0 {
			b.terms[t.handle] = t
		}
	}
	b.mu.Unlock()
	if t.handle == 0 {
		t.end()
		return nil, core.Errorf(core.KindInternal, "pty", "the session can't be handed over: too much is open")
	}
	if s, ok := core.PTYPromptOf(session); ok {
		s.Divert(core.Stdout, t.out[0].tryWrite)
		s.Divert(core.Stderr, t.out[1].tryWrite)
		t.in.direct = func(p []byte) (int, error) { return t.typeNow(s, p) }
	}
	t.run(func() { t.show(session.Read, t.out[0]) })
	t.run(func() { t.show(session.ReadStderr, t.out[1]) })
	t.run(t.typeIn)
	t.run(t.watch)
	return t, nil
}

func (t *terminal) run(f func()) {
	l := t.bridge.lib
	l.running.Add(1)
	l.safeGo(func() {
		defer l.running.Done()
		f()
	})
}

// show moves output of the session to the host.
func (t *terminal) show(read func(context.Context) ([]byte, error), ring *outRing) {
	for {
		moved := t.attached()
		p, err := read(t.ctx)
		var gap *core.PTYGap
		switch {
		case err == nil:
			if ring.Write(p) != nil {
				return // the host reads no more
			}
		case t.ctx.Err() != nil:
			ring.end(err)
			return
		case errors.Is(err, io.EOF):
			ring.end(nil)
			return
		case errors.As(err, &gap):
			ring.interrupt(err)
		case t.session.Closed():
			ring.end(err)
			return
		default:
			// It is detached. That is told when it happened by no operation of this host.
			select {
			case <-moved:
			default:
				ring.interrupt(err)
				t.await(moved)
			}
		}
	}
}

// typeIn moves the host's input to the session.
func (t *terminal) typeIn() {
	buf := make([]byte, typedPiece)
	for {
		n, err := t.in.Read(buf)
		if err != nil {
			return
		}
		t.attached()
		err = t.session.Write(t.ctx, buf[:n])
		switch {
		case err == nil:
		case t.ctx.Err() != nil || t.session.Closed():
			t.in.refuse(err)
			return
		default:
			t.in.drop(err)
		}
	}
}

// typeNow types from the host's thread what can be typed without waiting. Nothing that was written before is under way.
func (t *terminal) typeNow(s core.PTYPrompt, p []byte) (int, error) {
	t.mu.Lock()
	still := t.detached || t.paused
	t.mu.Unlock()
	if still {
		return 0, nil
	}
	return s.TryWrite(p)
}

// watch tells the host's writes when the session has ended.
func (t *terminal) watch() {
	_, err := t.session.WaitExit(t.ctx)
	if err == nil {
		err = t.session.Write(t.ctx, nil) // says what a write will be told from now on
	}
	if err != nil {
		t.in.refuse(err)
	}
}

// attached waits until the session is neither detached nor paused. What it gives is closed when that changes.
func (t *terminal) attached() <-chan struct{} {
	for {
		t.mu.Lock()
		moved, still := t.moved, t.detached || t.paused
		t.mu.Unlock()
		if !still || !t.await(moved) {
			return moved
		}
	}
}

// await waits for a change; false when the terminal has ended.
func (t *terminal) await(moved <-chan struct{}) bool {
	select {
	case <-moved:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// move notes a change, and has everybody look again.
func (t *terminal) move(change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change()
	close(t.moved)
	t.moved = make(chan struct{})
}

// settle waits for what was typed so far to be on its way, for a bounded time.
func (t *terminal) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	t.in.settle(ctx)
}

func (t *terminal) detach(ctx context.Context) error {
	t.settle(ctx)
	t.move(func() { t.detached = true })
	err := t.session.Detach()
	if err != nil {
		t.move(func() { t.detached = false })
	}
	return err
}

func (t *terminal) reattach(ctx context.Context) error {
	if err := t.session.Reattach(ctx); err != nil {
		return err
	}
	t.move(func() { t.detached = false })
	return nil
}

// close ends the session as its owner, else detaches from it.
func (t *terminal) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if !t.session.Closed() {
		t.settle(ctx)
	}
	defer t.end()
	return t.session.Close(ctx)
}

// letGo is for a terminal that nobody will use any more: its session lives on in the sandbox.
func (t *terminal) letGo() {
	t.forget()
	t.run(func() {
		t.settle(t.ctx)
		_ = t.session.Detach() // one that has ended needs it no more
		t.session.Abandon(errLetGo)
		t.end()
	})
}

func (t *terminal) forget() {
	b := t.bridge
	b.lib.table.remove(t.handle)
	b.mu.Lock()
	delete(b.terms, t.handle)
	b.mu.Unlock()
}

// end frees everything on this side.
func (t *terminal) end() {
	t.forget()
	t.stop()
	t.in.stop()
	for _, r := range t.out {
		r.abort()
	}
	for _, h := range t.streams {
		t.bridge.lib.StreamClose(h)
	}
}

// hold makes a change in all terminals of a sandbox.
func (l *Library) hold(sb *core.Sandbox, change func(*terminal)) {
	for _, v := range l.table.all(tagTerminal) {
		if t := v.(*terminal); t.sandbox == sb {
			t.move(func() { change(t) })
		}
	}
}
