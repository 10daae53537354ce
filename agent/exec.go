package agent

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/pump"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Exec runs one command; see core.Instance. The timeout counts from now. A
// command that outlives it, or whose ctx ends, is killed in the sandbox with all it
// started, and Exec waits for that.
func (c *Client) Exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	if ctx.Err() != nil {
		return core.ExecResult{}, core.Errorf(core.KindCanceled, "exec", "given up before it began: %w", context.Cause(ctx))
	}
	begun := time.Now()
	io, err := c.newStreams(req, sink)
	if err != nil {
		return core.ExecResult{}, core.Errorf(core.KindInternal, "exec", "make the command's pipes: %w", err)
	}
	defer io.close()

	msg := wire.Req{Op: wire.OpExec, Exec: &wire.Exec{
		Command: req.Command, Argv: req.Argv, Cwd: req.Cwd, Env: req.Env, User: req.User,
		Stdin: req.Stdin != nil, Keep: req.KeepBackground,
	}}
	if req.Timeout > 0 {
		msg.Exec.TimeoutNS = int64(req.Timeout)
		msg.Deadline = begun.Add(req.Timeout + c.clockLead()).UnixNano()
	}
	w := &execWait{c: c, io: io, begun: begun, timeout: req.Timeout}
	st, res, err := w.run(ctx, msg)
	if err != nil {
		if st != nil {
			c.pool.drop(st)
		}
		io.finish()
		if res, ok := w.gaveUp(); ok {
			return res, nil
		}
		return c.lostExec(ctx, err)
	}
	io.finish()
	if ctx.Err() != nil {
		c.pool.drop(st) // a Cancel may just be touching it
	} else {
		c.pool.put(st)
	}
	return c.execResult(ctx, req, res, sink)
}

func (c *Client) clockLead() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.skew
}

// execResult translates what the agent says.
func (c *Client) execResult(ctx context.Context, req core.ExecRequest, res wire.Res, sink core.Sink) (core.ExecResult, error) {
	switch {
	case res.TimedOut:
		out := core.TimedOut(c.o.Provider, req.Timeout)
		if res.Message != "" {
			out.Reason += " (" + oneLine(res.Message) + ")"
		}
		return out, nil
	case res.Cancelled && ctx.Err() != nil:
		return core.ExecResult{}, core.Errorf(core.KindCanceled, "exec", "the command was cancelled and its processes were killed: %w", context.Cause(ctx))
	case res.Error != "" && res.Kind == wire.KindLate && req.Timeout > 0:
		return core.TimedOut(c.o.Provider, req.Timeout), nil
	case res.Error != "":
		return core.RuntimeFailure(oneLine(res.Error)), nil
	case res.OOM:
		return core.ExecResult{ExitCode: res.Code, ErrorType: core.ErrorTypeSandbox,
			Reason: "out of memory: the kernel killed the command because the sandbox reached its memory limit"}, nil
	}
	if res.Message != "" {
		if err := sink.Write(core.Stderr, []byte(res.Message)); err != nil {
			return core.ExecResult{}, core.Errorf(core.KindInternal, "exec", "hand on the command's stderr: %w", err)
		}
	}
	return core.ExecResult{ExitCode: res.Code & 0xff}, nil
}

// lostExec is the outcome of a command whose stream broke.
func (c *Client) lostExec(ctx context.Context, err error) (core.ExecResult, error) {
	if ctx.Err() != nil {
		return core.ExecResult{}, c.failed(ctx, "exec", err)
	}
	if core.KindOf(err) == core.KindClosed {
		return core.RuntimeFailure(err.Error()), nil
	}
	return core.RuntimeFailure(c.why(ctx)), nil
}

// execWait sends a command, reads its frames until its end, and watches over an
// agent that does not answer.
type execWait struct {
	c       *Client
	io      *streams
	begun   time.Time
	timeout time.Duration

	mu      sync.Mutex
	end     func() // ends what the wait is blocked in; nil when the wait is over
	verdict string // why the wait was given up, "" when it was not
	late    bool   // because the deadline passed
}

// run gives the stream, when there is one, for the caller to put back or drop.
func (w *execWait) run(ctx context.Context, msg wire.Req) (*wire.Stream, wire.Res, error) {
	grace := w.c.o.KillGrace + settle
	// What watches ends with the wait, and the wait for it.
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	dialing, giveUp := context.WithCancel(ctx)
	defer giveUp()
	w.end = giveUp
	heard := make(chan struct{})
	hear := sync.OnceFunc(func() { close(heard) })
	endSilent := after(ackWithin, func() { w.c.silent(watching, heard, func(why string) { w.giveUp(false, why) }) })
	endLate := func() {}
	if w.timeout > 0 {
		endLate = after(time.Until(w.begun.Add(w.timeout+grace)), func() {
			w.giveUp(true, "the sandbox did not end the command in time: "+w.c.diagnose(watching).Reason)
		})
	}
	defer func() {
		w.blocked(nil)
		hear()
		cancel()
		endSilent()
		endLate()
	}()

	st, err := w.c.begin(dialing, msg, w.io.remote...)
	w.io.sent(st)
	if err != nil {
		return nil, wire.Res{}, err
	}
	if !w.blocked(func() { _ = st.Conn.Close() }) {
		return st, wire.Res{}, context.Canceled
	}
	stop := context.AfterFunc(ctx, func() {
		_ = st.WriteFrame(wire.Cancel, nil)
		_ = st.SetReadDeadline(time.Now().Add(grace))
	})
	res, err := w.c.result(st, func(t wire.Type, p []byte) error {
		hear()
		return w.io.frame(t, p)
	})
	if !stop() && err == nil && !res.Cancelled {
		// A Cancel may be under way on the stream: it must not meet the next command.
		err = context.Cause(ctx)
	}
	return st, res, err
}

// blocked tells how to end what the wait does next; false when it has been given up.
func (w *execWait) blocked(end func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end = end
	return w.verdict == ""
}

// after calls f after a time unless stop is called first; stop waits for an f that has begun.
func after(d time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	t := time.AfterFunc(d, func() { defer close(done); f() })
	return func() {
		if !t.Stop() {
			<-done
		}
	}
}

func (w *execWait) giveUp(late bool, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil || w.verdict != "" {
		return
	}
	w.verdict, w.late = why, late
	w.end()
}

// gaveUp gives the outcome of a wait that was given up.
func (w *execWait) gaveUp() (core.ExecResult, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.verdict == "":
		return core.ExecResult{}, false
	case w.late:
		res := core.TimedOut(w.c.o.Provider, w.timeout)
		res.Reason += "; " + w.verdict
		return res, true
	default:
		return core.RuntimeFailure(w.verdict), true
	}
}

// streams are a command's three streams on the host's side.
type streams struct {
	sink   core.Sink
	stdin  io.Reader
	remote []int // the command's ends, passed with the request
	pumps  []*pump.Pump
	in     *os.File      // where stdin is written to when it was passed
	frames chan struct{} // window of stdin frames when nothing was passed
	ended  chan struct{}
	wg     sync.WaitGroup
	broken [2]bool // the sink does not want more of that stream

	once sync.Once
}

// newStreams makes the pipes where descriptors can be passed; else bytes come in frames.
func (c *Client) newStreams(req core.ExecRequest, sink core.Sink) (*streams, error) {
	s := &streams{sink: sink, stdin: req.Stdin, ended: make(chan struct{})}
	if !c.o.PassFDs {
		s.frames = make(chan struct{}, wire.StdinWindow)
		return s, nil
	}
	for _, out := range []core.Stream{core.Stdout, core.Stderr} {
		r, w, err := pump.NewPipe()
		if err != nil {
			s.close()
			return nil, err
		}
		s.remote = append(s.remote, w)
		s.pumps = append(s.pumps, pump.Start(r, func(p []byte) error { return sink.Write(out, p) }))
	}
	if req.Stdin != nil {
		r, w, err := pump.NewStdinPipe()
		if err != nil {
			s.close()
			return nil, err
		}
		s.remote = append(s.remote, r)
		s.in = w
	}
	return s, nil
}

// sent closes the command's ends here and begins to feed stdin; st is nil when the request could not be sent.
func (s *streams) sent(st *wire.Stream) {
	for _, fd := range s.remote {
		_ = unix.Close(fd)
	}
	s.remote = nil
	if s.stdin == nil || st == nil {
		return
	}
	s.wg.Add(1)
	if s.in == nil {
		go s.feedFrames(st)
		return
	}
	go func() {
		defer s.wg.Done()
		defer s.in.Close()
		// An error means that the command does not read any more, which is its right.
		_, _ = io.Copy(s.in, s.stdin)
	}()
}

// feedFrames sends stdin in frames, as many at a time as the window allows.
func (s *streams) feedFrames(st *wire.Stream) {
	defer s.wg.Done()
	buf := make([]byte, wire.MaxData)
	for {
		n, err := s.stdin.Read(buf)
		if n > 0 || err != nil {
			select {
			case s.frames <- struct{}{}:
			case <-s.ended:
				return
			}
		}
		if n > 0 {
			if st.WriteFrame(wire.Stdin, buf[:n]) != nil {
				return
			}
			if err == nil {
				continue
			}
			select {
			case s.frames <- struct{}{}:
			case <-s.ended:
				return
			}
		}
		if err != nil {
			_ = st.WriteFrame(wire.Stdin, nil)
			return
		}
	}
}

// frame takes one frame of the agent.
func (s *streams) frame(t wire.Type, p []byte) error {
	switch t {
	case wire.Out:
		s.write(core.Stdout, p)
	case wire.Err:
		s.write(core.Stderr, p)
	case wire.StdinTaken:
		select {
		case <-s.frames:
		default:
		}
	case wire.Accepted:
	default:
		return fmt.Errorf("the agent sent a frame of type %d within a command", t)
	}
	return nil
}

func (s *streams) write(out core.Stream, p []byte) {
	if !s.broken[out] {
		s.broken[out] = s.sink.Write(out, p) != nil
	}
}

// finish waits until the rest of the output is in the sink.
func (s *streams) finish() {
	for _, p := range s.pumps {
		p.Ended()
	}
	for _, p := range s.pumps {
		<-p.Done()
	}
}

// close releases everything. Idempotent.
func (s *streams) close() {
	s.once.Do(func() {
		close(s.ended)
		for _, fd := range s.remote {
			_ = unix.Close(fd)
		}
		s.remote = nil
		for _, p := range s.pumps {
			p.Abort()
			<-p.Done()
		}
		if s.in != nil {
			_ = s.in.Close() // ends a write to a command that does not read
		}
		if c, ok := s.stdin.(io.Closer); ok {
			_ = c.Close() // ends a read of a source that gives nothing
		}
		s.wg.Wait()
	})
}
