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
	// killGrace is how long after its deadline a command is left to the daemon, which kills it and reports its last output.
	killGrace = 2 * time.Second
	// interruptTimeout bounds the request that ends a command: the daemon gives it 3 s to end by itself.
	interruptTimeout = 10 * time.Second
	// nameTimeout is how long a command whose caller has gone is waited for to tell its name, without which it can't be ended.
	nameTimeout = 5 * time.Second
	// drainTimeout bounds the reading of what comes behind a result, which takes a second by default.
	drainTimeout = 5 * time.Second
	// silence is how long a stream may be silent: the daemon gives a sign of life every 3 s.
	silence = 60 * time.Second
)

// commandBody is a request to run a command.
type commandBody struct {
	Command    string            `json:"command"`
	Cwd        string            `json:"cwd,omitempty"`
	Background bool              `json:"background,omitempty"`
	Timeout    int64             `json:"timeout,omitempty"` // ms
	UID        *int              `json:"uid,omitempty"`
	GID        *int              `json:"gid,omitempty"`
	Envs       map[string]string `json:"envs,omitempty"`
}

// Exec implements core.Instance.
func (i *instance) Exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	if err := req.Validate(); err != nil {
		return core.ExecResult{}, err
	}
	if ctx.Err() != nil {
		return core.ExecResult{}, canceled(ctx, "exec")
	}
	if err := i.healthy(); err != nil {
		return core.ExecResult{}, err
	}
	if req.Stdin != nil {
		return core.ExecResult{}, core.Errorf(core.KindNotSupported, "exec", "commands in OpenSandbox have no input: upload a file, and let the command read it")
	}
	if len(req.Argv) > 0 {
		req.Command, req.Argv = words(req.Argv), nil
	}
	if req.Timeout == 0 {
		req.Timeout = core.DefaultExecTimeout
	}
	if req.Command == "" {
		return core.ExecResult{}, nil // as in any shell; the daemon refuses it
	}
	tidy, err := i.shorten(ctx, &req)
	if err != nil {
		if ctx.Err() != nil {
			return core.ExecResult{}, canceled(ctx, "exec")
		}
		return i.refused(ctx, err)
	}
	defer tidy()
	if req.KeepBackground {
		return i.execKeeping(ctx, req, sink)
	}
	res, err := i.run(ctx, req, sink)
	if err == nil && res.ErrorType == "" && res.ExitCode == 128+9 && i.ranOutOfMemory(ctx) {
		res.ErrorType, res.Reason = core.ErrorTypeSandbox, "a process of the command was killed because the sandbox was out of memory"
	}
	return res, err
}

// run makes one command of a request and waits for its result.
func (i *instance) run(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	who, err := readAccount("exec", req.User)
	if err != nil {
		return core.ExecResult{}, err
	}
	body := &commandBody{Command: plainCommand(req.Command), Cwd: req.Cwd, Envs: req.Env, UID: who.uid, GID: who.gid}
	if isPattern(req.Cwd) {
		body.Command, body.Cwd = goTo(req.Cwd)+body.Command, ""
	}
	if who.name != "" {
		body.Command = asUser(body.Command, who.name)
	}
	if req.Timeout > 0 {
		body.Timeout = max(int64((req.Timeout+time.Millisecond-1)/time.Millisecond), 1)
	}
	if i.p.cfg.Operations.BackgroundExec {
		body.Background = true
		return i.execPolled(ctx, req, body, sink)
	}
	s := &stream{i: i, path: "/command", body: body, timeout: req.Timeout, sink: sink, interrupt: i.interrupt}
	return s.run(ctx)
}

// interrupt ends a command by the name that its stream gave.
func (i *instance) interrupt(ctx context.Context, name string) error {
	_, err := i.ask(ctx, call{method: http.MethodDelete, timeout: interruptTimeout}, "/command?id="+url.QueryEscape(name), nil)
	if e := statusOf(err); e == http.StatusInternalServerError || e == http.StatusNotFound {
		return nil // it has ended meanwhile
	}
	return err
}

// submit sends a command. ctx ends the waiting between tries, life the request and its answer's body.
func (i *instance) submit(ctx, life context.Context, path string, body any) (*http.Response, error) {
	o := &i.p.cfg.Operations
	wait := 250 * time.Millisecond
	for n := 0; ; n++ {
		res, err := i.submitOnce(ctx, life, path, body)
		if err == nil || !neverStarted(err) {
			return res, err
		}
		if n >= o.Retries || !pause(ctx, wait) {
			return nil, &unreachableError{id: i.id, err: err}
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// submitOnce is submit, but for requests that did not come through.
func (i *instance) submitOnce(ctx, life context.Context, path string, body any) (res *http.Response, err error) {
	o := &i.p.cfg.Operations
	b := backoff{retries: o.CommandRetries, first: seconds(o.RetryDelayS), limit: seconds(o.RetryMaxDelayS), lateIsFinal: true,
		again: func(err error) bool { return !neverStarted(err) && mayHeal(err) }}
	err = b.retry(ctx, "sending a command to sandbox "+i.id, func(context.Context) error {
		c, err := i.toDaemon(life, call{method: http.MethodPost, json: body, command: true, header: http.Header{"Accept": {"text/event-stream"}}}, path)
		if err != nil {
			return err
		}
		if res, err = i.p.rest.send(life, c); err != nil {
			return i.heard(err)
		}
		if res.StatusCode/100 == 2 {
			return nil
		}
		p, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		_ = res.Body.Close()
		return newAPIError(res, p)
	})
	return res, err
}

// unreachableError is a daemon that can't be reached: the command has not run.
type unreachableError struct {
	id  string
	err error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("OpenSandbox backend unreachable; sandbox_id=%s: %v", e.id, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// refused is the outcome of a command that could not be sent. What the caller can
// mend is an error; what became of the sandbox is a result.
func (i *instance) refused(ctx context.Context, err error) (core.ExecResult, error) {
	var e *core.Error
	if errors.As(err, &e) && e.Kind == core.KindInvalid {
		return core.ExecResult{}, err
	}
	switch status := statusOf(err); status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return core.ExecResult{}, core.Errorf(core.KindInvalid, "exec", "the sandbox's daemon refused the command: %w", err)
	case http.StatusUnauthorized, http.StatusForbidden:
		return core.ExecResult{}, core.Errorf(core.KindAuth, "exec", "the command was refused: %w", err)
	}
	return i.lost(ctx, err), nil
}

// lost is the result of a command whose daemon was lost before or during it.
func (i *instance) lost(ctx context.Context, err error) core.ExecResult {
	reason := err.Error()
	if cause := i.diagnose(context.WithoutCancel(ctx)); cause != nil {
		reason = cause.Error() + " (" + reason + ")"
	}
	return core.RuntimeFailure(clip(reason, 2000))
}

// memoryEvents prints how often the kernel killed for memory, with either version of cgroups.
const memoryEvents = "cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control 2>/dev/null"

// ranOutOfMemory tells whether the kernel has killed for memory since it was asked last.
func (i *instance) ranOutOfMemory(ctx context.Context) bool {
	out := core.NewCollector(64 << 10)
	defer out.Close()
	s := &stream{i: i, path: "/command", body: &commandBody{Command: memoryEvents, Timeout: 10000}, timeout: 10 * time.Second, sink: out, interrupt: i.interrupt}
	if res, err := s.run(ctx); err != nil || res.ErrorType != "" {
		return false
	}
	count := int64(-1)
	for line := range strings.Lines(out.Output(core.Stdout).String()) {
		var n int64
		if _, err := fmt.Sscanf(line, "oom_kill %d", &n); err == nil {
			count = max(count, n)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	before := i.oomKills
	i.oomKills = count
	return before >= 0 && count > before
}
