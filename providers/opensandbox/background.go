package opensandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// registerTimeout is how long the daemon may not know a command yet whose name it has just given.
	registerTimeout = 5 * time.Second
	registerPoll    = 50 * time.Millisecond
	// clockSlack is by how much the life of a command that was killed for its time may look shorter than that.
	clockSlack = time.Second
	// logTimeout bounds the reading of what a command printed that was ended here: it may be without a bound of its own.
	logTimeout = 10 * time.Second
)

// commandStatus is what the daemon says of a command that runs in the background.
type commandStatus struct {
	Running  *bool  `json:"running"`
	ExitCode *int   `json:"exit_code"`
	Error    string `json:"error"`

	StartedAt  string `json:"started_at"`
	FinishedAt string `json:"finished_at"`
}

// expired tells whether a command that was killed has had its time. Polls may be far apart: one that was killed before,
// for want of memory for instance, is found only later. By the daemon's clock, that is known.
func (s commandStatus) expired(timeout time.Duration, begun time.Time) bool {
	if timeout <= 0 || *s.ExitCode >= 0 || time.Since(begun) < timeout {
		return false
	}
	started, err := time.Parse(time.RFC3339, s.StartedAt)
	if err != nil {
		return true
	}
	finished, err := time.Parse(time.RFC3339, s.FinishedAt)
	if err != nil {
		return true
	}
	took := finished.Sub(started)
	return took <= 0 || took >= timeout-clockSlack
}

// execPolled runs a command in the background and asks for its state now and then:
// no connection has to hold for as long as it runs. Its two streams come as one.
func (i *instance) execPolled(ctx context.Context, req core.ExecRequest, body *commandBody, sink core.Sink) (core.ExecResult, error) {
	begun := time.Now()
	name, res, err := i.launch(ctx, body, req.Timeout)
	if name == "" {
		return res, err
	}
	status, err := i.awaitExit(ctx, name, req.Timeout, begun)
	switch {
	case ctx.Err() != nil:
		i.endPolled(name)
		return core.ExecResult{}, canceled(ctx, "exec")
	case errors.Is(err, errExpired):
		i.endPolled(name)
		i.readLate(ctx, name, sink)
		return core.TimedOut(providerName, req.Timeout), nil
	case err != nil:
		i.endPolled(name)
		return i.lost(ctx, fmt.Errorf("the command's state could not be learned: %w", err)), nil
	}
	if status.expired(req.Timeout, begun) {
		// The daemon has ended it in time.
		i.readLate(ctx, name, sink)
		if ctx.Err() != nil {
			return core.ExecResult{}, canceled(ctx, "exec")
		}
		return core.TimedOut(providerName, req.Timeout), nil
	}
	if err := i.readLog(ctx, name, sink); err != nil {
		if ctx.Err() != nil {
			return core.ExecResult{}, canceled(ctx, "exec")
		}
		return i.lost(ctx, fmt.Errorf("the command has ended (code %d), but its output could not be read: %w", *status.ExitCode, err)), nil
	}
	code, _ := codeOfValue(fmt.Sprint(*status.ExitCode), []string{status.Error})
	if status.Error != "" {
		_ = sink.Write(core.Stderr, []byte(status.Error)) // a receiver that wants no more is no failure
	}
	return core.ExecResult{ExitCode: code}, nil
}

// launch starts a command in the background. Without a name there is only a result. Neither a caller who gives up nor the
// command's own time waits for longer than nameTimeout for a daemon that says nothing.
func (i *instance) launch(ctx context.Context, body *commandBody, timeout time.Duration) (name string, res core.ExecResult, err error) {
	life, end := context.WithCancelCause(context.WithoutCancel(ctx))
	limit := i.p.cfg.Connection.requestTimeout()
	late := timeout > 0 && timeout < limit-killGrace-nameTimeout
	if late {
		limit = timeout + killGrace + nameTimeout
	}
	timer := time.AfterFunc(limit, func() { end(errNotBegun) })
	defer timer.Stop()
	defer context.AfterFunc(ctx, func() { timer.Reset(nameTimeout) })()
	failed := func(err error) (string, core.ExecResult, error) {
		end(nil)
		switch {
		case ctx.Err() != nil:
			return "", core.ExecResult{}, canceled(ctx, "exec")
		case late && errors.Is(context.Cause(life), errNotBegun):
			return "", core.TimedOut(providerName, timeout), nil
		}
		res, err := i.refused(ctx, err)
		return "", res, err
	}
	answer, err := i.submit(ctx, life, "/command", body)
	if err != nil {
		return failed(err)
	}
	ev := newEvents(answer.Body)
	defer ev.letGo()
	for {
		e, err := ev.next()
		switch {
		case err != nil:
			_ = answer.Body.Close()
			if life.Err() != nil {
				err = context.Cause(life)
			}
			if name == "" {
				return failed(err)
			}
			end(nil)
			return name, core.ExecResult{}, nil // its state will tell
		case e.Type == "init":
			name = e.Text
			continue
		case e.Type == "" || e.Type == "error":
			i.drain(answer, end)
			text := e.Code + ": " + e.Message
			if e.Type == "error" {
				text = e.Error.Name + ": " + e.Error.Value
			}
			return "", core.RuntimeFailure(clip("the command could not be started: "+text, 2000)), nil
		case e.Type == "execution_complete":
			i.drain(answer, end)
			if name == "" {
				return "", core.RuntimeFailure("the daemon started a command without naming it"), nil
			}
			return name, core.ExecResult{}, nil
		}
	}
}

var errNotBegun = errors.New("the daemon does not say that the command has begun")

var errExpired = errors.New("the command has had its time")

// awaitExit polls until the command has ended.
func (i *instance) awaitExit(ctx context.Context, name string, timeout time.Duration, begun time.Time) (commandStatus, error) {
	o := &i.p.cfg.Operations
	longest := seconds(o.BackgroundPollIntervalS)
	wait := min(seconds(o.BackgroundPollInitialS), longest)
	known := false
	for {
		st, err := i.commandStatus(ctx, name)
		switch {
		case ctx.Err() != nil:
			return st, context.Cause(ctx)
		case statusOf(err) == http.StatusNotFound && !sandboxGone404(err) && !known && time.Since(begun) < registerTimeout:
			if !pause(ctx, registerPoll) {
				return st, context.Cause(ctx)
			}
			continue
		case err != nil:
			return st, err
		case st.Running == nil:
			return st, fmt.Errorf("the daemon's answer has no field %q", "running")
		case !*st.Running && st.ExitCode == nil:
			return st, fmt.Errorf("the daemon's answer has no field %q", "exit_code")
		case !*st.Running:
			return st, nil
		}
		known = true
		next := wait
		if timeout > 0 {
			left := timeout + killGrace - time.Since(begun)
			if left <= 0 && !i.isPaused() {
				return st, errExpired
			}
			if left > 0 {
				next = min(next, left)
			}
		}
		if !pause(ctx, next) {
			return st, context.Cause(ctx)
		}
		wait = min(wait+wait/2, longest)
	}
}

// sandboxGone404 tells a sandbox that is gone from a command that the daemon does not know.
func sandboxGone404(err error) bool {
	return strings.HasSuffix(codeOf(err), "SANDBOX_NOT_FOUND") // a daemon's codes name no sandbox
}

func (i *instance) commandStatus(ctx context.Context, name string) (st commandStatus, err error) {
	b := i.ops()
	b.lateIsFinal = false
	limit := orSeconds(i.p.cfg.Operations.StatusPollTimeoutS, orSeconds(i.p.cfg.Connection.RequestTimeoutS, 60*time.Second))
	err = b.retry(ctx, "asking for a command in sandbox "+i.id, func(ctx context.Context) error {
		st = commandStatus{}
		_, err := i.ask(ctx, call{method: http.MethodGet, timeout: limit}, "/command/status/"+url.PathEscape(name), &st)
		return err
	})
	return st, err
}

// endPolled ends a command that nobody waits for any more.
func (i *instance) endPolled(name string) {
	ctx, cancel := context.WithTimeout(context.Background(), interruptTimeout)
	defer cancel()
	quietly(ctx, "a command could not be ended and may still run", i.interrupt(ctx, name))
}

// readLate reads what a command printed that was ended for its time.
func (i *instance) readLate(ctx context.Context, name string, sink core.Sink) {
	ctx, cancel := context.WithTimeout(ctx, logTimeout)
	defer cancel()
	quietly(ctx, "the output of a command that timed out could not be read", i.readLog(ctx, name, sink))
}

// readLog gives all that a command printed, exactly.
func (i *instance) readLog(ctx context.Context, name string, sink core.Sink) error {
	var read int64
	return i.ops().retry(ctx, "reading the output of a command in sandbox "+i.id, func(ctx context.Context) error {
		c, err := i.toDaemon(ctx, call{method: http.MethodGet}, fmt.Sprintf("/command/%s/logs?cursor=%d", url.PathEscape(name), read))
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		limit := i.p.cfg.Connection.requestTimeout()
		idle := time.AfterFunc(limit, func() { cancel(fmt.Errorf("nothing came for %gs", limit.Seconds())) })
		defer idle.Stop()
		res, err := i.p.rest.send(ctx, c)
		if err != nil {
			return i.heard(err)
		}
		defer func() { _ = res.Body.Close() }()
		if res.StatusCode/100 != 2 {
			p, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
			return newAPIError(res, p)
		}
		shut := false
		buf := make([]byte, 64<<10)
		for {
			idle.Reset(limit)
			n, err := res.Body.Read(buf)
			idle.Stop()
			read += int64(n)
			if n > 0 && !shut {
				shut = sink.Write(core.Stdout, buf[:n]) != nil
			}
			switch {
			case errors.Is(err, io.EOF) && res.ContentLength < 0:
				return i.wholeLog(res, read)
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return readFailed(ctx, err)
			}
		}
	})
}

// wholeLog checks that a log without a length has come to its end: a server may
// end a body in good order that its daemon did not.
func (i *instance) wholeLog(res *http.Response, read int64) error {
	var end int64
	if _, err := fmt.Sscan(res.Header.Get("EXECD-COMMANDS-TAIL-CURSOR"), &end); err == nil && read < end {
		return &transportError{what: "incomplete chunked read", err: fmt.Errorf("%d of %d bytes came", read, end)}
	}
	return nil
}
