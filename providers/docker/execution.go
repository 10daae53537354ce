package docker

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// execution is one engine exec under way: its stream, and where its output goes.
type execution struct {
	engine engine
	id     string
	stream *execStream
	meter  *meter
	held   *firstChunk
	err    *gate
	read   chan struct{} // closed when the stream has been read to its end
}

const (
	// drainTimeout is how long output is still read after a command's end, when
	// something that it left behind holds its streams open. Time that the
	// reader of the output takes does not count.
	drainTimeout = 2 * time.Second
	// drainBytes is how much is still read then: more than all buffers on the
	// way can hold, so what comes later was printed after the command's end.
	drainBytes = 16 << 20
)

// newExecution begins to read. close ends it.
func newExecution(e engine, id string, stream *execStream, sink core.Sink) *execution {
	x := &execution{engine: e, id: id, stream: stream, meter: &meter{r: stream}, read: make(chan struct{})}
	out := &gate{sink: sink, stream: core.Stdout}
	x.err = &gate{sink: sink, stream: core.Stderr}
	x.held = &firstChunk{next: out}
	go func() { // ends with the stream, which close drops
		defer close(x.read)
		if _, err := stdcopy.StdCopy(x.held, x.err, x.meter); err != nil {
			slog.Debug("a command's stream broke off", "provider", providerName, "error", err.Error())
		}
	}()
	return x
}

// feed writes the command's input beside.
func (x *execution) feed(stdin io.Reader) {
	if stdin == nil {
		return
	}
	go func() { // ends with the reader or, at its next read, with the stream
		_, _ = io.Copy(x.stream, stdin)
		_ = x.stream.CloseWrite()
	}()
}

// await returns when the command has ended and its output has been read, or run
// ends. The stream's end alone proves neither: a command can close its outputs
// and go on, and what it leaves behind can hold them open.
func (x *execution) await(run context.Context) (container.ExecInspect, error) {
	wait := 100 * time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	read := x.read
	for {
		select {
		case <-run.Done():
			return container.ExecInspect{}, context.Cause(run)
		case <-read:
			read, wait = nil, 2*time.Millisecond
		case <-timer.C:
			wait = min(2*wait, time.Second)
		}
		state, err := x.engine.ExecInspect(run, x.id)
		if err != nil {
			return state, err
		}
		if !state.Running {
			x.drain(false)
			return state, nil
		}
		timer.Reset(wait)
	}
}

// drain reads the rest of the output for a bounded time, then drops the stream.
// hurry bounds it also when the one who takes the output does not.
func (x *execution) drain(hurry bool) {
	x.meter.mark()
	begun := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-x.read:
			return
		case <-tick.C:
		}
		waited, got := x.meter.since()
		if waited < drainTimeout && got < drainBytes && (!hurry || time.Since(begun) < drainTimeout) {
			continue
		}
		_ = x.stream.Close()
		last := time.NewTimer(time.Second)
		defer last.Stop()
		select {
		case <-x.read:
		case <-last.C: // the one who takes the output holds it
			x.shut()
		}
		return
	}
}

// close drops the stream. Nothing is written to the sink afterwards.
func (x *execution) close() {
	_ = x.stream.Close()
	x.shut()
}

func (x *execution) shut() {
	x.held.next.shut()
	x.err.shut()
}

// gate passes output on to a sink until it is shut. A sink that refuses ends
// the passing on, not the command.
type gate struct {
	sink   core.Sink
	stream core.Stream

	mu   sync.Mutex
	down bool
}

func (g *gate) write(p []byte) error {
	g.mu.Lock()
	down := g.down
	g.mu.Unlock()
	if down {
		return nil
	}
	if err := g.sink.Write(g.stream, p); err != nil {
		g.shut()
	}
	return nil
}

// Write implements io.Writer.
func (g *gate) Write(p []byte) (int, error) { return len(p), g.write(p) }

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.down = true
}

// firstChunk keeps the first piece of standard output back while it could be
// the engine's own word that a command could not be started, which engines
// write into the stream. Whether it was is known from the exec's state.
type firstChunk struct {
	next *gate
	mu   sync.Mutex
	kept []byte
	seen bool
}

// Write implements io.Writer.
func (f *firstChunk) Write(p []byte) (int, error) {
	f.mu.Lock()
	first := !f.seen
	f.seen = true
	// The engine ends its message so; a command without a terminal hardly ever does.
	if first && bytes.HasSuffix(p, []byte("\r\n")) {
		f.kept = bytes.Clone(p)
		f.mu.Unlock()
		return len(p), nil
	}
	f.mu.Unlock()
	f.flush()
	return f.next.Write(p)
}

// flush passes on what was kept back.
func (f *firstChunk) flush() {
	if kept := f.take(); kept != "" {
		_ = f.next.write([]byte(kept))
	}
}

// take gives what was kept back to the caller instead.
func (f *firstChunk) take() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	kept := string(f.kept)
	f.kept = nil
	return kept
}

// meter tells how long its reader waited for bytes, and how many came.
type meter struct {
	r io.Reader

	mu     sync.Mutex
	began  time.Time // of the read under way; zero: none
	waited time.Duration
	got    int64
}

// Read implements io.Reader.
func (m *meter) Read(p []byte) (int, error) {
	m.mu.Lock()
	m.began = time.Now()
	m.mu.Unlock()
	n, err := m.r.Read(p)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waited += time.Since(m.began)
	m.began = time.Time{}
	m.got += int64(n)
	return n, err
}

// mark starts the count anew.
func (m *meter) mark() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waited, m.got = 0, 0
	if !m.began.IsZero() {
		m.began = time.Now()
	}
}

// since gives the counts since mark.
func (m *meter) since() (time.Duration, int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	waited := m.waited
	if !m.began.IsZero() {
		waited += time.Since(m.began)
	}
	return waited, m.got
}

var errNotStarted = errors.New("the engine could not start it")

// runHelper runs one of the provider's own commands by an engine exec and gives its standard output.
func runHelper(ctx context.Context, e engine, name string, o container.ExecOptions, stdin io.Reader, limit int64) (string, int, error) {
	o.AttachStdout, o.AttachStderr, o.AttachStdin = true, true, stdin != nil
	id, err := e.ExecCreate(ctx, name, o)
	if err != nil {
		return "", 0, err
	}
	stream, err := e.ExecAttach(ctx, id)
	if err != nil {
		return "", 0, err
	}
	out := core.NewCollector(limit)
	defer out.Close()
	x := newExecution(e, id, stream, out)
	defer x.close()
	x.feed(stdin)
	state, err := x.await(ctx)
	if err != nil {
		return "", 0, err
	}
	if state.Pid == 0 {
		return oneLine(x.held.take()), state.ExitCode, errNotStarted
	}
	x.held.flush()
	return out.Output(core.Stdout).String(), state.ExitCode, nil
}
