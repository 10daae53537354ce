package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// engineRunner runs each command by an exec of the engine's own. It needs
// nothing in the container but a shell, costs about 100 ms per command, and
// kills by walking the container's /proc.
type engineRunner struct {
	i     *instance
	args  execArgs // what the configuration adds to every exec
	shell string
	user  string // the image's, which the engine takes when none is named

	keptMu sync.Mutex
	kept   core.Defaults // what the sandbox's defaults were changed to

	oomMu    sync.Mutex
	oomKills int64 // the last known count of the container's cgroup
}

const (
	// tagVariable marks what belongs to one command: children inherit it.
	tagVariable = "NGS_EXEC"
	// argLimit is the kernel's limit for one argument, with its terminating NUL.
	argLimit = 128 << 10
	// killTimeout bounds the killing of one command's processes, in addition to their time of grace.
	killTimeout = 10 * time.Second
)

// exec implements runner.
func (r *engineRunner) exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	run := ctx
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		run, cancel = context.WithTimeoutCause(ctx, req.Timeout, errCommandTimeout)
		defer cancel()
	}
	tag := randomHex(16)
	options := r.options(req, tag)
	id, err := r.i.p.engine.ExecCreate(run, r.i.name, options.ExecOptions)
	if err != nil {
		return r.failed(ctx, run, req, err)
	}
	stream, err := r.i.p.engine.ExecAttach(run, id)
	if err != nil {
		if run.Err() != nil {
			// The engine may have started it before it was told to forget about it.
			r.kill(ctx, tag)
		}
		return r.failed(ctx, run, req, err)
	}
	x := newExecution(r.i.p.engine, id, stream, sink)
	defer x.close()
	x.feed(options.stdin)
	state, err := x.await(run)
	if run.Err() != nil {
		r.kill(ctx, tag)
		x.drain(true)
		x.held.flush()
		return r.failed(ctx, run, req, context.Cause(run))
	}
	if err != nil {
		x.drain(true)
		x.held.flush()
		return r.failed(ctx, run, req, err)
	}
	return r.result(ctx, req, x, state), nil
}

// errCommandTimeout is why a command's context ended.
var errCommandTimeout = errors.New("the command's time is over")

// execOptions is an exec and what it reads.
type execOptions struct {
	container.ExecOptions
	stdin io.Reader
}

// options translates a request.
func (r *engineRunner) options(req core.ExecRequest, tag string) execOptions {
	o := execOptions{ExecOptions: container.ExecOptions{
		User:         firstOf(req.User, r.args.user),
		WorkingDir:   firstOf(req.Cwd, r.args.workdir),
		Privileged:   r.args.privileged,
		Env:          append(append([]string{tagVariable + "=" + tag}, r.args.env...), environ(req.Env)...),
		Cmd:          req.Argv,
		AttachStdout: true,
		AttachStderr: true,
	}, stdin: req.Stdin}
	if len(req.Argv) == 0 {
		o.Cmd, o.stdin = shellArgv(r.shell, req.Command, req.Stdin)
	}
	o.AttachStdin = o.stdin != nil
	return o
}

// shellArgv gives the words that run a command. One that is too long for an
// argument goes in pieces, or over the standard input when that is free.
func shellArgv(shell, command string, stdin io.Reader) ([]string, io.Reader) {
	if len(command) < argLimit-1 {
		if strings.HasPrefix(command, "-") || strings.HasPrefix(command, "+") {
			command = " " + command // else the shell takes it for an option
		}
		return []string{shell, "-c", command}, stdin
	}
	if stdin == nil {
		// The x keeps the substitution from cutting line ends off.
		const script = `c=$(cat; printf x); exec </dev/null; eval " ${c%x}"`
		return []string{shell, "-c", script}, strings.NewReader(command)
	}
	const script = `IFS=; c=$*; unset IFS; set --; eval " $c"`
	argv := []string{shell, "-c", script, shell}
	for len(command) > 0 {
		n := min(len(command), argLimit-1)
		argv, command = append(argv, command[:n]), command[n:]
	}
	return argv, stdin
}

// failed turns what went wrong around a command into its result, or into an
// error when the request itself could not be served.
func (r *engineRunner) failed(ctx, run context.Context, req core.ExecRequest, err error) (core.ExecResult, error) {
	switch {
	case ctx.Err() != nil:
		return core.ExecResult{}, core.Errorf(core.KindCanceled, "exec", "canceled, and what it ran was killed: %w", context.Cause(ctx))
	case run.Err() != nil:
		if v := r.i.diagnose(ctx); v.reason != "" {
			return core.RuntimeFailure(v.reason), nil
		}
		return core.TimedOut(providerName, req.Timeout), nil
	}
	if v := r.i.diagnose(ctx); v.reason != "" {
		return core.RuntimeFailure(v.reason), nil
	}
	return core.RuntimeFailure(oneLine(err.Error())), nil
}

// result reads how a command ended.
func (r *engineRunner) result(ctx context.Context, req core.ExecRequest, x *execution, state container.ExecInspect) core.ExecResult {
	if state.Pid == 0 {
		return r.refused(ctx, req, x)
	}
	x.held.flush()
	res := core.ExecResult{ExitCode: state.ExitCode}
	if state.ExitCode != 128+9 {
		return res
	}
	// Killed: by somebody in there, by the kernel for want of memory, or together with the whole container,
	// of whose end the engine may not know yet; but in a container that ends nothing more can be started.
	short, err := r.outOfMemory(ctx)
	switch {
	case err != nil:
		if v := r.i.diagnoseEnd(ctx); v.status == core.StatusStopped {
			return core.RuntimeFailure(v.reason)
		}
	case short:
		res.ErrorType, res.Reason = core.ErrorTypeSandbox, "the command was killed: out of memory"
	}
	return res
}

// refused is for a command that the engine could not start. Where the program
// does not exist it is the command's own failure, as a shell would have it.
func (r *engineRunner) refused(ctx context.Context, req core.ExecRequest, x *execution) core.ExecResult {
	text := oneLine(x.held.take())
	if v := r.i.diagnose(ctx); v.reason != "" {
		return core.RuntimeFailure(v.reason)
	}
	cwd := strings.Contains(text, "chdir")
	if len(req.Argv) > 0 && !cwd {
		for words, code := range map[string]int{"executable file not found": 127, "no such file or directory": 127, "permission denied": 126, "is a directory": 126} {
			if strings.Contains(text, words) {
				_ = x.err.write([]byte(req.Argv[0] + ": " + words + "\n"))
				return core.ExecResult{ExitCode: code}
			}
		}
	}
	if cwd && req.Cwd != "" {
		return core.RuntimeFailure(fmt.Sprintf("the working directory %s does not exist or can't be entered: %s", req.Cwd, text))
	}
	return core.RuntimeFailure("the engine could not start the command: " + text)
}

// oneLine makes an engine's message fit for a reason.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 500 {
		s = s[:500] + "..."
	}
	return s
}

// useEngine prepares for commands by engine exec in a container that has just been started.
func (i *instance) useEngine(ctx context.Context, pl *plan) error {
	shell := i.p.shellFor(ctx, pl.img.ID, i.name)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	i.run = &engineRunner{i: i, args: i.p.args, shell: shell, user: pl.user}
	return nil
}

// endedEarly explains a container without an agent that ended before it was ready.
func (i *instance) endedEarly(ctx context.Context, exit <-chan int64, err error) error {
	v := i.diagnoseEnd(ctx)
	if v.status != core.StatusStopped {
		return err
	}
	select {
	case code, ok := <-exit:
		if ok {
			v.reason = fmt.Sprintf("the container ended with code %d", code)
		}
	default:
	}
	return fmt.Errorf("%s before it was ready: has the image %s a %s for the engine's architecture (create.keepalive_shell), or an entry point that goes on? (%w)",
		v.reason, i.image, i.p.cfg.Create.KeepaliveShell, err)
}

// shellFor chooses the shell of commands: the configured one, else bash where
// the image has it, else sh. It is found out once per image.
func (p *Provider) shellFor(ctx context.Context, imageID, name string) string {
	if s := p.cfg.Exec.ExecShell; s != nil {
		return *s
	}
	p.mu.Lock()
	known := p.shellOf[imageID]
	p.mu.Unlock()
	if known != "" {
		return known
	}
	const plain = "sh"
	found, err := p.shells.do(ctx, imageID, func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, killTimeout)
		defer cancel()
		_, code, err := runHelper(ctx, p.engine, name, container.ExecOptions{Cmd: []string{"sh", "-c", "command -v bash"}}, nil, 4<<10)
		if err != nil {
			return plain, err
		}
		shell := plain
		if code == 0 {
			shell = "bash"
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.shellOf[imageID] = shell
		return shell, nil
	})
	if err != nil {
		return plain // and asked again for the next sandbox
	}
	return found
}

// defaultsFile keeps in the container what commands get that do not say
// otherwise, for those who connect later. It is the sandbox's own to change.
const defaultsFile = "/.ngs-defaults"

// handover implements runner. Without an agent nothing ends a sandbox that nobody holds.
func (r *engineRunner) handover(ctx context.Context, d core.Defaults) error {
	if d.User == "" && d.Workdir == "" {
		return nil
	}
	complaint, code, err := r.script(ctx, `printf '%s\n%s\n' "$1" "$2" >"$3"`, nil, io.Discard, d.User, d.Workdir, defaultsFile)
	if err != nil {
		return err
	}
	if code != 0 {
		r.i.p.warnOnce("defaults", "the default user and directory of a sandbox can't be passed on to other processes", "sandbox", r.i.name, "reason", complaint)
	}
	return nil
}

// defaults reads what handover noted, else it takes the container's.
func (r *engineRunner) defaults(ctx context.Context, workdir string) core.Defaults {
	var noted strings.Builder
	if _, code, err := r.script(ctx, `cat "$1"`, nil, &noted, defaultsFile); err == nil && code == 0 {
		if lines := strings.Split(noted.String(), "\n"); len(lines) == 3 {
			return core.Defaults{User: lines[0], Workdir: lines[1]}
		}
	}
	return core.Defaults{Workdir: workdir}
}

// close implements runner.
func (r *engineRunner) close() {}

var _ runner = (*engineRunner)(nil)
