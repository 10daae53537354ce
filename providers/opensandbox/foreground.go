package opensandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// stream is one command whose output and result arrive as they come about.
type stream struct {
	i       *instance
	path    string
	body    any
	timeout time.Duration
	sink    core.Sink
	// interrupt ends the command, given its name.
	interrupt func(ctx context.Context, name string) error
	// timedOut is the result when the time is over; nil is the usual one.
	timedOut func() core.ExecResult
	// ownDeadline: the daemon does not know of the timeout.
	ownDeadline bool

	begun time.Time
	named chan string // gets the command's name once
}

// outcome is what a stream said, or why it said nothing.
type outcome struct {
	res     core.ExecResult
	refusal error // the command was not taken
	cut     error // it was, and then the stream ended
	killed  bool
}

// run sends the command and waits for its result. When ctx ends, or the time is over, the command is ended first.
func (s *stream) run(ctx context.Context) (core.ExecResult, error) {
	s.begun = time.Now()
	s.named = make(chan string, 1)
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	over := make(chan struct{})
	var first atomic.Int32 // what has ended the command; the others come too late
	stopped := make(chan struct{})
	stop := func(by int32) {
		if first.CompareAndSwap(0, by) {
			s.stop(over, end)
			close(stopped)
		}
	}
	unwatch := context.AfterFunc(ctx, func() { stop(byCaller) })
	defer unwatch()
	if s.timeout > 0 {
		limit := s.timeout
		if !s.ownDeadline {
			limit += killGrace
		}
		timer := time.AfterFunc(limit, func() { stop(byDeadline) })
		defer timer.Stop()
	}
	o := s.pump(ctx, life, end)
	close(over)
	if first.CompareAndSwap(0, byItself) {
		return s.result(ctx, o)
	}
	<-stopped
	if first.Load() == byCaller {
		return core.ExecResult{}, canceled(ctx, "exec")
	}
	return s.late(), nil
}

// What has ended a command.
const (
	byItself int32 = 1 + iota
	byCaller
	byDeadline
)

func (s *stream) late() core.ExecResult {
	if s.timedOut != nil {
		return s.timedOut()
	}
	return core.TimedOut(providerName, s.timeout)
}

// stop ends the command, and waits until the pump has ended.
func (s *stream) stop(over <-chan struct{}, end context.CancelCauseFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), interruptTimeout)
	defer cancel()
	timer := time.NewTimer(nameTimeout)
	defer timer.Stop()
	select {
	case <-over:
		return
	case <-timer.C:
		end(errors.New("the command did not begin"))
		<-over
		return
	case name := <-s.named:
		err := s.interrupt(ctx, name)
		quietly(ctx, "a command could not be ended and may still run", err)
		if err != nil {
			end(err)
			<-over
			return
		}
	}
	// It has ended; how much of its output is still on the way does not matter any more.
	last := time.NewTimer(killGrace)
	defer last.Stop()
	select {
	case <-over:
	case <-last.C:
		end(errors.New("the command has been ended"))
		<-over
	}
}

// result makes a stream's outcome the command's.
func (s *stream) result(ctx context.Context, o outcome) (core.ExecResult, error) {
	switch {
	case ctx.Err() != nil && (o.refusal != nil || o.cut != nil):
		s.stopLost(ctx)
		return core.ExecResult{}, canceled(ctx, "exec")
	case o.refusal != nil:
		return s.i.refused(ctx, o.refusal)
	case o.cut != nil:
		s.stopLost(ctx)
		return s.i.lost(ctx, o.cut), nil
	case o.killed && s.expired():
		return s.late(), nil
	}
	return o.res, nil
}

// stopLost ends a command whose stream was lost: nobody will read what it still prints.
func (s *stream) stopLost(ctx context.Context) {
	select {
	case name := <-s.named:
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), interruptTimeout)
		defer cancel()
		quietly(stop, "a command whose stream was lost could not be ended", s.interrupt(stop, name))
	default:
	}
}

// expired tells whether the command has had its time.
func (s *stream) expired() bool { return s.timeout > 0 && time.Since(s.begun) >= s.timeout }

// pump sends the command and reads its stream up to the result. end ends life.
func (s *stream) pump(ctx, life context.Context, end context.CancelCauseFunc) outcome {
	res, err := s.i.submit(ctx, life, s.path, s.body)
	if err != nil {
		var api *apiError
		var t *transportError
		if errors.As(err, &t) && !t.unsent && !errors.As(err, &api) {
			err = fmt.Errorf("no answer came to the request to run the command; it may have run: %w", err)
		}
		end(nil)
		return outcome{refusal: err}
	}
	watch := s.watch(end)
	defer watch.Stop()
	out := &lines{sink: s.sink}
	ev := newEvents(res.Body)
	defer ev.letGo()
	for {
		if !ev.waiting() {
			out.flush()
		}
		watch.Reset(silence)
		e, err := ev.next()
		watch.Stop() // what follows may wait for who takes the output
		if err != nil {
			out.flush()
			_ = res.Body.Close()
			if life.Err() != nil {
				err = fmt.Errorf("%w: %w", errCut, context.Cause(life))
			}
			end(nil)
			return outcome{cut: err}
		}
		if o, done := s.take(e, out); done {
			out.flush()
			s.i.drain(res, end)
			return o
		}
	}
}

// watch ends a stream that has become silent, unless the sandbox is paused: then it has to be.
func (s *stream) watch(end context.CancelCauseFunc) *time.Timer {
	var t *time.Timer
	ready := make(chan struct{})
	t = time.AfterFunc(silence, func() {
		<-ready
		if s.i.isPaused() {
			t.Reset(silence)
			return
		}
		end(fmt.Errorf("nothing came for %gs", silence.Seconds()))
	})
	close(ready)
	return t
}

// take handles one event. done is true with the last.
func (s *stream) take(e event, out *lines) (o outcome, done bool) {
	switch e.Type {
	case "init":
		select {
		case s.named <- e.Text:
		default:
		}
	case "stdout":
		out.write(core.Stdout, e.Text)
	case "stderr":
		out.write(core.Stderr, e.Text)
	case "execution_complete":
		return outcome{}, true
	case "error":
		code, ok := codeOfValue(e.Error.Value, e.Error.Traceback)
		if !ok {
			return outcome{res: core.RuntimeFailure(clip("the command could not be run: "+e.Error.Name+": "+e.Error.Value, 2000))}, true
		}
		o = outcome{res: core.ExecResult{ExitCode: code}, killed: code < 0 || code == 128+9 || code == 128+15}
		if !o.killed || !s.expired() {
			out.write(core.Stderr, e.Error.Name+": "+e.Error.Value)
		}
		return o, true
	case "":
		if e.Code == "" && e.Message == "" {
			return outcome{cut: fmt.Errorf("%w: it holds something that is no event", errCut)}, true
		}
		return outcome{res: core.RuntimeFailure(clip(fmt.Sprintf("the sandbox's daemon reported %s: %s", e.Code, e.Message), 2000)), killed: true}, true
	}
	return outcome{}, false
}

// drain reads in the background what comes behind a result, so that the connection
// can be used again: the daemon takes its time. It ends the request.
func (i *instance) drain(res *http.Response, end context.CancelCauseFunc) {
	if own, ok := res.Body.(*ownBody); ok && own.ended() {
		end(nil)
		return
	}
	started := i.p.background(func(ctx context.Context) {
		stop := context.AfterFunc(ctx, func() { _ = res.Body.Close() })
		defer stop()
		timer := time.AfterFunc(drainTimeout, func() { _ = res.Body.Close() })
		defer timer.Stop()
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<20))
		_ = res.Body.Close()
		end(nil)
	})
	if !started {
		_ = res.Body.Close()
		end(nil)
	}
}
