package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/mem"
)

// script is a session whose every step the test decides: what it prints, how it ends, whether it takes input.
type script struct {
	core.PTYSession // nil: what is not scripted is a fault

	mu       sync.Mutex
	changed  chan struct{}
	printed  [2][]any // pieces of output and errors, as they will be read
	typed    bytes.Buffer
	calls    []string
	blocked  bool // input is not taken
	detached bool
	closed   bool
	exited   bool
	err      error
}

func (s *script) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits for ok, which is called with the lock held.
func (s *script) until(ctx context.Context, ok func() bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !ok() {
		ch := s.changed
		s.mu.Unlock()
		var err error
		select {
		case <-ch:
		case <-ctx.Done():
			err = core.Errorf(core.KindCanceled, "", "%w", context.Cause(ctx))
		}
		s.mu.Lock()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *script) print(to core.Stream, what any) {
	s.change(func() { s.printed[to] = append(s.printed[to], what) })
}

func (s *script) read(ctx context.Context, from core.Stream) ([]byte, error) {
	var p []byte
	var out error
	err := s.until(ctx, func() bool {
		switch {
		case s.detached:
			out = core.Errorf(core.KindPTY, "", "it is detached")
		case len(s.printed[from]) > 0:
			p, _ = s.printed[from][0].([]byte)
			out, _ = s.printed[from][0].(error)
			s.printed[from] = s.printed[from][1:]
		case s.exited:
			out = io.EOF
		case s.err != nil:
			out = s.err
		default:
			return false
		}
		return true
	})
	return p, errors.Join(err, out)
}

func (s *script) SessionID() string { return "the-id" }
func (s *script) Mode() string      { return "pty" }

func (s *script) ReplayOffset() (int64, bool) { return 5, true }

func (s *script) Closed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed || s.exited || s.err != nil
}

func (s *script) Read(ctx context.Context) ([]byte, error)       { return s.read(ctx, core.Stdout) }
func (s *script) ReadStderr(ctx context.Context) ([]byte, error) { return s.read(ctx, core.Stderr) }

func (s *script) Write(ctx context.Context, p []byte) error {
	var out error
	err := s.until(ctx, func() bool {
		switch {
		case s.exited || s.closed:
			out = core.Errorf(core.KindPTY, "", "it is closed")
		case s.err != nil:
			out = s.err
		case s.detached:
			out = core.Errorf(core.KindPTY, "", "it is detached")
		case s.blocked:
			return false
		default:
			s.typed.Write(p)
		}
		return true
	})
	s.change(func() {})
	return errors.Join(err, out)
}

func (s *script) called(what string) { s.change(func() { s.calls = append(s.calls, what) }) }

func (s *script) Resize(context.Context, int, int) error { s.called("resize"); return nil }

func (s *script) Signal(_ context.Context, name string) error {
	s.change(func() { s.calls = append(s.calls, name+" after "+s.typed.String()) })
	return nil
}

func (s *script) WaitExit(ctx context.Context) (int, error) {
	var out error
	err := s.until(ctx, func() bool {
		switch {
		case s.exited:
		case s.err != nil:
			out = s.err
		case s.closed:
			out = core.Errorf(core.KindPTY, "", "it was closed before")
		default:
			return false
		}
		return true
	})
	return 3, errors.Join(err, out)
}

func (s *script) Detach() error {
	s.change(func() { s.detached = true; s.calls = append(s.calls, "detach") })
	return nil
}

func (s *script) Suspend() bool {
	s.change(func() { s.detached = true })
	return true
}

func (s *script) Reattach(context.Context) error {
	s.change(func() { s.detached = false })
	return nil
}

func (s *script) Close(context.Context) error {
	s.change(func() { s.closed = true; s.calls = append(s.calls, "close") })
	return nil
}

func (s *script) Abandon(reason error) { s.change(func() { s.err = reason }) }

// terminalBox is a sandbox whose sessions are scripts.
type terminalBox struct {
	core.Instance
	sessions chan *script
	enter    chan struct{} // when not nil an open waits for it
}

func (b *terminalBox) OpenPTY(context.Context, core.PTYSpec) (core.PTYSession, error) {
	if b.enter != nil {
		b.enter <- struct{}{}
		<-b.enter
	}
	s := &script{changed: make(chan struct{})}
	b.sessions <- s
	return s, nil
}

func (b *terminalBox) AttachPTY(ctx context.Context, id string, takeover bool, since int64) (core.PTYSession, error) {
	if id != "the-id" || !takeover || since != 5 {
		return nil, core.Errorf(core.KindPTY, "", "session %s not found", id)
	}
	return b.OpenPTY(ctx, core.PTYSpec{})
}

func (b *terminalBox) Pause(context.Context) error  { return nil }
func (b *terminalBox) Resume(context.Context) error { return nil }

type terminalProvider struct {
	core.Provider
	box *terminalBox
}

func (p *terminalProvider) Create(ctx context.Context, spec core.Spec) (core.Instance, error) {
	in, err := p.Provider.Create(ctx, spec)
	p.box.Instance = in
	return p.box, err
}

// newTerminals gives a host with a sandbox for sessions.
func newTerminals(t *testing.T) (*host, *terminalBox, Handle) {
	box := &terminalBox{sessions: make(chan *script, 10)}
	h := newHost(t, newLibrary(t, func(r *core.Registry) {
		r.Register("terminals", func(json.RawMessage) (core.Provider, error) {
			p, err := mem.NewFactory()(nil)
			return &terminalProvider{p, box}, err
		})
	}))
	p, err := h.lib.NewProvider("terminals", nil)
	require.NoError(t, err)
	var made sandboxReply
	h.run(opCreate, object{"provider": p, "spec": object{}}, &made)
	return h, box, made.Sandbox
}

func (h *host) open(box *terminalBox, sandbox Handle) (ptyReply, *script) {
	h.t.Helper()
	var r ptyReply
	h.run(opPTYOpen, object{"sandbox": sandbox}, &r)
	return r, <-box.sessions
}

// more reads what comes next from a stream, waiting for an edge; with the code when that is not OK.
func (h *host) more(s Handle) (string, Code) {
	h.t.Helper()
	buf := make([]byte, 100)
	for {
		n, code := h.lib.StreamRead(s, buf)
		if n > 0 || code != OK {
			return string(buf[:n]), code
		}
		h.edge(s)
	}
}

func (h *host) failure(s Handle) errorPayload {
	h.t.Helper()
	raw, code := h.lib.StreamError(s)
	require.Equal(h.t, OK, code)
	var p errorPayload
	require.NoError(h.t, json.Unmarshal(raw, &p))
	return p
}

func TestTheLifeOfATerminal(t *testing.T) {
	h, box, sb := newTerminals(t)
	r, s := h.open(box, sb)
	require.Equal(t, "the-id", r.ID)
	require.Equal(t, "pty", r.Mode)
	require.EqualValues(t, 5, *r.ReplayOffset)
	raw, code := h.lib.StreamError(r.Stdout)
	require.Equal(t, OK, code)
	require.Nil(t, raw)

	n, code := h.lib.StreamWrite(r.Stdin, []byte("typed"))
	require.Equal(t, OK, code)
	require.Equal(t, 5, n)
	require.NoError(t, s.until(t.Context(), func() bool { return s.typed.String() == "typed" }))
	s.print(core.Stdout, []byte("out"))
	s.print(core.Stderr, []byte("err"))
	text, _ := h.more(r.Stdout)
	require.Equal(t, "out", text)
	text, _ = h.more(r.Stderr)
	require.Equal(t, "err", text)
	h.run(opPTYResize, object{"terminal": r.Terminal, "rows": 1, "cols": 2}, nil)

	wait := h.submit(opPTYWait, object{"terminal": r.Terminal})
	s.change(func() { s.exited = true; s.printed[0] = []any{[]byte("tail")} })
	e := h.wait(wait)
	require.Equal(t, OK, e.status)
	require.EqualValues(t, 3, e.aux)
	text, _ = h.more(r.Stdout)
	require.Equal(t, "tail", text)
	for range 2 {
		_, code = h.more(r.Stdout)
		require.Equal(t, EOF, code)
	}
	_, code = h.more(r.Stderr)
	require.Equal(t, EOF, code)
	eventually(t, "input is refused", func() bool {
		_, code := h.lib.StreamWrite(r.Stdin, []byte("x"))
		return code == ErrFailed
	})
	require.Contains(t, h.failure(r.Stdin).Message, "it is closed")
	var info ptyReply
	h.run(opPTYInfo, object{"terminal": r.Terminal}, &info)
	require.True(t, info.Closed)
	require.Zero(t, info.Terminal)

	h.run(opPTYClose, object{"terminal": r.Terminal}, nil)
	h.run(opPTYClose, object{"terminal": r.Terminal}, nil)
	require.Equal(t, []string{"resize", "close"}, s.calls)
	_, code = h.lib.StreamRead(r.Stdout, make([]byte, 1))
	require.Equal(t, ErrBadHandle, code)
	require.Equal(t, core.KindPTY, h.fail(opPTYInfo, object{"terminal": r.Terminal}).Kind)
	require.Zero(t, h.stats().Terminals)
	require.Zero(t, h.stats().Streams)
}

func TestAGapIsReadInItsPlace(t *testing.T) {
	h, box, sb := newTerminals(t)
	r, s := h.open(box, sb)
	s.print(core.Stdout, []byte("before"))
	s.print(core.Stdout, error(&core.Error{Kind: core.KindPTY, Err: &core.PTYGap{Bytes: 7, At: 6}}))
	s.print(core.Stdout, []byte("behind"))
	text, _ := h.more(r.Stdout)
	require.Equal(t, "before", text)
	_, code := h.more(r.Stdout)
	require.Equal(t, ErrFailed, code)
	require.Equal(t, core.KindPTY, h.failure(r.Stdout).Kind)
	require.Contains(t, h.failure(r.Stdout).Message, "7 bytes of output from offset 6 on were lost")
	text, _ = h.more(r.Stdout)
	require.Equal(t, "behind", text)
}

func TestALostSessionIsNoCleanEnd(t *testing.T) {
	h, box, sb := newTerminals(t)
	r, s := h.open(box, sb)
	wait := h.submit(opPTYWait, object{"terminal": r.Terminal})
	s.print(core.Stdout, []byte("last"))
	s.Abandon(core.Errorf(core.KindPTY, "", "taken over"))
	text, _ := h.more(r.Stdout)
	require.Equal(t, "last", text)
	for range 2 {
		_, code := h.more(r.Stdout)
		require.Equal(t, ErrFailed, code)
		require.Contains(t, h.failure(r.Stdout).Message, "taken over")
	}
	require.Contains(t, h.failed(wait).Message, "taken over")
	eventually(t, "input is refused", func() bool {
		_, code := h.lib.StreamWrite(r.Stdin, []byte("x"))
		return code == ErrFailed
	})
	require.Contains(t, h.failure(r.Stdin).Message, "taken over")
}

func TestInputLargerThanARingArrivesInOrder(t *testing.T) {
	h, box, sb := newTerminals(t)
	r, s := h.open(box, sb)
	s.change(func() { s.blocked = true })
	want := make([]byte, 3*ringSize)
	for i := range want {
		want[i] = byte(i % 251)
	}
	left := want
	for len(left) > 0 {
		n, code := h.lib.StreamWrite(r.Stdin, left)
		require.Equal(t, OK, code)
		if left = left[n:]; len(left) > 0 {
			s.change(func() { s.blocked = false })
			h.edge(r.Stdin)
		}
	}
	require.NoError(t, s.until(t.Context(), func() bool { return s.typed.Len() == len(want) }))
	require.True(t, bytes.Equal(want, s.typed.Bytes()))
}

func TestADetachedTerminalStandsStill(t *testing.T) {
	h, box, sb := newTerminals(t)
	r, s := h.open(box, sb)
	for name, c := range map[string]struct {
		off, on uint32
		req     object
	}{
		"detach": {opPTYDetach, opPTYReattach, object{"terminal": r.Terminal}},
		"pause":  {opPause, opResume, object{"sandbox": sb}},
	} {
		t.Run(name, func(t *testing.T) {
			s.change(func() { s.typed.Reset() })
			_, code := h.lib.StreamWrite(r.Stdin, []byte("one"))
			require.Equal(t, OK, code)
			h.run(c.off, c.req, nil)
			require.NoError(t, s.until(t.Context(), func() bool { return s.typed.String() == "one" && s.detached }))
			_, code = h.lib.StreamWrite(r.Stdin, []byte("two"))
			require.Equal(t, OK, code)
			s.print(core.Stdout, []byte("later"))
			n, code := h.lib.StreamRead(r.Stdout, make([]byte, 1))
			require.Zero(t, n)
			require.Equal(t, OK, code, "nothing is told of it")
			require.Equal(t, "one", s.typed.String())
			h.run(c.on, c.req, nil)
			text, _ := h.more(r.Stdout)
			require.Equal(t, "later", text)
			require.NoError(t, s.until(t.Context(), func() bool { return s.typed.String() == "onetwo" }))
		})
	}
}

func TestADetachFromElsewhereIsTold(t *testing.T) {
	h, box, sb := newTerminals(t)
	r, s := h.open(box, sb)
	require.NoError(t, s.Detach())
	_, code := h.more(r.Stdout)
	require.Equal(t, ErrFailed, code)
	require.Contains(t, h.failure(r.Stdout).Message, "it is detached")
	_, code = h.lib.StreamWrite(r.Stdin, []byte("lost"))
	require.Equal(t, OK, code)
	eventually(t, "the loss is told", func() bool {
		_, code := h.lib.StreamWrite(r.Stdin, nil)
		return code == ErrFailed
	})
	h.run(opPTYReattach, object{"terminal": r.Terminal}, nil)
	s.print(core.Stdout, []byte("again"))
	text, _ := h.more(r.Stdout)
	require.Equal(t, "again", text)
}

func TestASignalFollowsWhatWasTypedButIsNotHeldByIt(t *testing.T) {
	h, box, sb := newTerminals(t)
	r, s := h.open(box, sb)
	_, code := h.lib.StreamWrite(r.Stdin, []byte("typed"))
	require.Equal(t, OK, code)
	h.run(opPTYSignal, object{"terminal": r.Terminal, "signal": "SIGINT"}, nil)
	s.change(func() { s.blocked = true })
	_, code = h.lib.StreamWrite(r.Stdin, []byte("stuck"))
	require.Equal(t, OK, code)
	begin := time.Now()
	h.run(opPTYSignal, object{"terminal": r.Terminal, "signal": "SIGKILL"}, nil)
	require.Less(t, time.Since(begin), patience/2)
	require.Equal(t, []string{"SIGINT after typed", "SIGKILL after typed"}, s.calls)
}

func TestATerminalThatNobodyUsesLivesOn(t *testing.T) {
	for name, leave := range map[string]func(*host, Handle) Code{
		"release": func(h *host, terminal Handle) Code { return h.lib.Release(terminal) },
		"bridge":  func(h *host, _ Handle) Code { return h.lib.CloseBridge(h.handle) },
	} {
		t.Run(name, func(t *testing.T) {
			h, box, sb := newTerminals(t)
			r, s := h.open(box, sb)
			h.submit(opPTYWait, object{"terminal": r.Terminal})
			require.Equal(t, OK, leave(h, r.Terminal))
			require.Equal(t, OK, h.lib.Release(r.Terminal))
			h.lib.running.Wait()
			require.Equal(t, []string{"detach"}, s.calls)
			require.Zero(t, h.stats().Terminals)
			require.Zero(t, h.stats().Streams)
		})
	}
}

func TestACancelledOpenLeavesNoSession(t *testing.T) {
	h, box, sb := newTerminals(t)
	box.enter = make(chan struct{})
	h.submit(opPTYOpen, object{"sandbox": sb})
	<-box.enter
	require.Equal(t, OK, h.lib.CloseBridge(h.handle))
	box.enter <- struct{}{}
	h.lib.running.Wait()
	require.Equal(t, []string{"close"}, (<-box.sessions).calls)
	require.Zero(t, h.stats().Terminals)
}

func TestAttachSaysWhatItWants(t *testing.T) {
	h, box, sb := newTerminals(t)
	var r ptyReply
	h.run(opPTYAttach, object{"sandbox": sb, "id": "the-id", "takeover": true, "since": 5}, &r)
	<-box.sessions
	require.NotZero(t, r.Terminal)
	require.True(t, strings.Contains(h.fail(opPTYAttach, object{"sandbox": sb, "id": "x"}).Message, "session x not found"))
	_, mem := h.sandbox("{}")
	require.EqualValues(t, core.KindNotSupported, h.fail(opPTYOpen, object{"sandbox": mem}).Kind)
}
