package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/pump"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
)

const (
	// acceptAfter is when a command that still runs is announced: sooner would
	// cost every short command a message.
	acceptAfter = 100 * time.Millisecond
)

// prepared is a command that is ready to be forked.
type prepared struct {
	path  string
	argv  []string
	attr  syscall.ProcAttr
	files []*os.File // kept open until the fork
}

func (p *prepared) close() {
	for _, f := range p.files {
		_ = f.Close()
	}
}

// exec runs one command.
func (s *server) exec(o *operation) wire.Res {
	e := o.req.Exec
	if e == nil {
		return wire.Res{Kind: wire.KindInvalid, Error: "the request holds no command"}
	}
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return wire.Res{Kind: wire.KindInternal, Error: err.Error()}
	}
	tag := process.ExecTag + "=" + hex.EncodeToString(id)
	p, res := s.prepare(*e, tag)
	if p == nil {
		return res
	}
	defer p.close()
	io, err := s.connect(o, p)
	if err != nil {
		return wire.Res{Kind: wire.KindInternal, Error: "make the command's pipes: " + err.Error()}
	}
	oomBefore := s.oomKill.read()
	pid, status, err := s.reap.Start(p.path, p.argv, &p.attr)
	io.started()
	if err != nil {
		io.finish(o)
		return startError(e, p, err)
	}

	var timeout <-chan time.Time
	if e.TimeoutNS > 0 {
		t := time.NewTimer(time.Duration(e.TimeoutNS))
		defer t.Stop()
		timeout = t.C
	}
	accept := time.AfterFunc(acceptAfter, func() { _ = o.st.WriteFrame(wire.Accepted, nil) })
	defer accept.Stop()

	var ws syscall.WaitStatus
	select {
	case ws = <-status:
	case <-timeout:
		res.TimedOut = true
	case <-o.ctx.Done():
		res.Cancelled = true
	}
	if res.TimedOut || res.Cancelled {
		t := process.Tree{Leader: pid, Tag: []byte(tag), Alone: e.Keep}
		t.End(s.cfg.KillGrace)
		select {
		case ws = <-status:
		case <-time.After(process.KillTimeout):
			res.Message = "the process could not be killed"
		}
	}
	res.Code = process.ExitCode(ws)
	if res.Code == 128+int(unix.SIGKILL) && !res.TimedOut && !res.Cancelled {
		res.OOM = s.oomKill.read() > oomBefore
	}
	accept.Stop()
	io.finish(o)
	return res
}

// prepare finds out what has to be forked. A nil result comes with the reason.
func (s *server) prepare(e wire.Exec, tag string) (*prepared, wire.Res) {
	s.mu.Lock()
	def := s.defaults
	s.mu.Unlock()
	if e.User == "" {
		e.User = def.User
	}
	if e.Cwd == "" {
		e.Cwd = def.Workdir
	}
	if e.Cwd == "" {
		e.Cwd = "/"
	}
	if !path.IsAbs(e.Cwd) {
		base := def.Workdir
		if base == "" {
			base = "/"
		}
		e.Cwd = path.Join(base, e.Cwd)
	}
	who, err := s.users.Resolve(e.User)
	if err != nil {
		return nil, wire.Res{Kind: wire.KindUser, Error: err.Error()}
	}
	if st, err := os.Stat(e.Cwd); err != nil {
		return nil, wire.Res{Kind: wire.KindCwd, Error: fmt.Sprintf("the working directory %s does not exist in the sandbox (%v)", e.Cwd, process.Reason(err))}
	} else if !st.IsDir() {
		return nil, wire.Res{Kind: wire.KindCwd, Error: fmt.Sprintf("the working directory %s is not a directory", e.Cwd)}
	}
	env := s.environ(who, e.Env, tag)
	p := &prepared{attr: syscall.ProcAttr{Dir: e.Cwd, Env: env, Sys: &syscall.SysProcAttr{Setsid: true, Credential: who.Cred}}}
	if len(e.Argv) > 0 {
		p.argv = e.Argv
		found, err := process.LookPath(e.Argv[0], e.Cwd, process.LookupEnv(env, "PATH"))
		if err != nil {
			code := 127
			if errors.Is(err, fs.ErrPermission) {
				code = 126
			}
			return nil, wire.Res{Code: code, Message: fmt.Sprintf("%s: %v\n", e.Argv[0], err)}
		}
		p.path = found
		return p, wire.Res{}
	}
	sh, err := s.shell.Find()
	if err != nil {
		return nil, wire.Res{Kind: wire.KindShell, Error: err.Error()}
	}
	p.path = sh
	arg, file, err := process.CommandArg(e.Command)
	if err != nil {
		return nil, wire.Res{Kind: wire.KindStart, Error: err.Error()}
	}
	if file != nil {
		p.files = append(p.files, file)
	}
	p.argv = []string{filepath.Base(sh), "-c", arg}
	return p, wire.Res{}
}

// startError tells why a command could not be forked or executed.
func startError(e *wire.Exec, p *prepared, err error) wire.Res {
	what := p.path
	switch {
	case errors.Is(err, unix.EACCES) && len(e.Argv) == 0:
		return wire.Res{Kind: wire.KindStart, Error: fmt.Sprintf("user %q may not use the shell %s or the working directory %s: %v", e.User, what, p.attr.Dir, err)}
	case errors.Is(err, unix.EPERM):
		return wire.Res{Kind: wire.KindUser, Error: fmt.Sprintf("the sandbox may not run a command as user %q: %v; its capabilities forbid changing user", e.User, err)}
	case errors.Is(err, unix.E2BIG):
		return wire.Res{Kind: wire.KindStart, Error: "arguments and environment together are too long for the kernel; write them to a file"}
	case len(e.Argv) > 0 && errors.Is(err, unix.ENOEXEC):
		return wire.Res{Code: 126, Message: fmt.Sprintf("%s: exec format error: not a program for this machine\n", what)}
	case len(e.Argv) > 0 && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT)):
		code := 126
		if errors.Is(err, unix.ENOENT) {
			code = 127
		}
		return wire.Res{Code: code, Message: fmt.Sprintf("%s: %v\n", what, err)}
	default:
		return wire.Res{Kind: wire.KindStart, Error: fmt.Sprintf("start %s: %v", what, err)}
	}
}

// commandIO is a command's standard streams on the agent's side.
type commandIO struct {
	child []int // the command's ends, closed here once it has them
	out   []*pump.Pump
	in    *os.File
}

// connect gives the command its streams: descriptors that came with the
// request, or pipes whose bytes travel in frames.
func (s *server) connect(o *operation, p *prepared) (*commandIO, error) {
	io := &commandIO{}
	fail := func(err error) (*commandIO, error) {
		io.started()
		io.finish(o)
		return nil, err
	}
	in, stdout, stderr := -1, -1, -1
	if o.req.FDs >= 2 {
		stdout, stderr = o.fds[0], o.fds[1]
		if o.req.FDs >= 3 {
			in = o.fds[2]
		}
		io.child, o.fds = o.fds, nil
	} else {
		for i, t := range []wire.Type{wire.Out, wire.Err} {
			r, w, err := pump.NewPipe()
			if err != nil {
				return fail(err)
			}
			io.child = append(io.child, w)
			io.out = append(io.out, pump.Start(r, func(b []byte) error { return o.st.WriteFrame(t, b) }))
			if i == 0 {
				stdout = w
			} else {
				stderr = w
			}
		}
		if o.req.Exec.Stdin {
			r, w, err := pump.NewStdinPipe()
			if err != nil {
				return fail(err)
			}
			io.child = append(io.child, r)
			in, io.in = r, w
			go o.stdin.copyTo(w, func() error { return o.st.WriteFrame(wire.StdinTaken, nil) })
		}
	}
	if in < 0 {
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			// An image without /dev/null: an empty pipe reads as end of file just as well.
			r, w, perr := pump.NewStdinPipe()
			if perr != nil {
				return fail(perr)
			}
			_ = w.Close()
			null = r
		}
		io.child = append(io.child, null)
		in = null
	}
	p.attr.Files = []uintptr{uintptr(in), uintptr(stdout), uintptr(stderr)}
	for _, f := range p.files {
		p.attr.Files = append(p.attr.Files, f.Fd())
	}
	return io, nil
}

// started closes the command's ends in this process.
func (io *commandIO) started() { closeFDs(io.child) }

// finish waits until all output has been sent.
func (io *commandIO) finish(o *operation) {
	o.stdin.close()
	for _, p := range io.out {
		p.Ended()
	}
	for _, p := range io.out {
		<-p.Done()
	}
}
