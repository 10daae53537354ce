// Package daemon is the agent itself: the process in a sandbox that starts
// commands for its client on the host, moves files, and ends the sandbox when its time has come.
package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
)

// maxStrangers bounds connections that have not authenticated, so that a
// process in the sandbox can't take the agent's descriptors by dialling.
const maxStrangers = 32

// server is one running agent.
type server struct {
	cfg     wire.ServeConfig
	base    []string // environment that every command starts from, without HOME
	home    string   // HOME that every command gets, "" when it follows the user
	users   *process.Users
	shell   *process.Shell
	reap    *process.Reaper
	life    *life
	oomKill *oomCounter

	mu       sync.Mutex
	token    []byte
	defaults wire.Defaults
	main     sync.Once // the entrypoint is started once

	terms terminals
}

// Run serves until the sandbox's end and gives the agent's exit code.
func Run(cfg wire.ServeConfig) (int, error) {
	process.CloseInherited()
	// A token read late, or a socket that commands could replace, would be
	// theirs: both are settled before anything else runs.
	var token []byte
	if cfg.TokenFile != "" {
		var err error
		if token, err = os.ReadFile(cfg.TokenFile); err != nil {
			return 1, fmt.Errorf("read the token: %w", err)
		}
		if err := os.Remove(cfg.TokenFile); err != nil {
			return 1, fmt.Errorf("remove the token file: %w", err)
		}
		if len(token) != wire.TokenLen {
			return 1, fmt.Errorf("the token has %d bytes instead of %d", len(token), wire.TokenLen)
		}
	}
	// Nobody in the sandbox but root may look into this process.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("prctl: %w", err)
	}
	if cfg.Subreaper {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return 1, fmt.Errorf("become the subreaper: %w", err)
		}
	}
	// Handled signals are reset to their default in commands, ignored ones would stay ignored.
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	// The agent is small; let it stay small rather than fast at collecting garbage.
	debug.SetGCPercent(50)

	l, err := listen(cfg.Socket)
	if err != nil {
		return 1, err
	}
	defer l.Close()

	s := &server{cfg: cfg, token: token, defaults: wire.Defaults{User: cfg.User, Workdir: cfg.Workdir}}
	s.base, s.home = baseEnv(os.Environ(), cfg.KeepHome)
	s.users = process.NewUsers(cfg.SingleUser)
	s.shell = &process.Shell{Configured: cfg.Shell, Path: process.LookupEnv(s.base, "PATH")}
	var oom *process.OOMScore
	if cfg.OOMScore {
		oom = process.NewOOMScore()
	}
	s.reap = process.NewReaper(oom)
	s.oomKill = newOOMCounter()
	s.life = newLife(cfg)
	if cfg.Workdir != "" {
		if err := os.MkdirAll(cfg.Workdir, 0o755); err != nil && !errors.Is(err, unix.EROFS) {
			return 1, fmt.Errorf("make the working directory %s: %w", cfg.Workdir, err)
		}
	}
	go s.accept(l)

	for {
		select {
		case sig := <-sigs:
			if sig == unix.SIGPIPE || sig == unix.SIGHUP || sig == unix.SIGQUIT || sig == unix.SIGINT {
				continue // meant for somebody else, or sent by a command
			}
			s.life.end("it was asked to end by a signal", 0)
		case e := <-s.life.over:
			s.life.sayFarewell(e.reason)
			s.terms.halt()
			if cfg.Subreaper {
				s.killAll()
			}
			return e.code, nil
		}
	}
}

// listen makes the socket, which every user of the sandbox may knock at. It
// goes through a descriptor of the folder: the path may be longer than an address can hold.
func listen(socket string) (net.Listener, error) {
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's folder: %w", err)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the socket's folder %s: %w", dir, err)
	}
	defer unix.Close(fd)
	l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/%s", fd, filepath.Base(socket)))
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := os.Chmod(socket, 0o666); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("open the socket to every user: %w", err)
	}
	return l, nil
}

// accept runs until the listener is closed.
func (s *server) accept(l net.Listener) {
	strangers := make(chan struct{}, maxStrangers)
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: those in use will come back
			continue
		}
		select {
		case strangers <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		go s.serve(c, func() { <-strangers })
	}
}

// serve authenticates one stream and runs its operations, one after the other.
func (s *server) serve(c net.Conn, known func()) {
	st := wire.NewAgentStream(c)
	defer st.Close()
	err := wire.AcceptHandshake(c, s.secret(), s.claimer(c))
	known()
	if err != nil {
		return
	}
	s.life.enter()
	defer s.life.leave()
	var (
		buf  []byte
		cur  *operation
		done = make(chan struct{})
	)
	close(done)
	defer func() {
		if cur != nil {
			cur.cancel(errClientLeft)
			cur.stdin.close()
			_ = st.Conn.Close() // ends a write to a client that does not read
			<-cur.done
		}
	}()
	for {
		t, p, err := st.ReadFrame(buf)
		if err != nil {
			return
		}
		if cap(p) <= wire.MaxData {
			buf = p
		}
		switch t {
		case wire.Request:
			if cur != nil {
				<-cur.done
			}
			var req wire.Req
			if err := json.Unmarshal(p, &req); err != nil {
				return
			}
			fds := st.TakeFDs()
			if len(fds) != req.FDs {
				closeFDs(fds)
				return
			}
			if req.Op == wire.OpHTTP {
				closeFDs(fds)
				s.terminals().ServeConn(c)
				return
			}
			ctx, cancel := context.WithCancelCause(context.Background())
			cur = &operation{st: st, req: req, fds: fds, ctx: ctx, cancel: cancel, done: make(chan struct{}), stdin: newStdin()}
			go s.run(cur)
		case wire.Cancel:
			if cur != nil {
				cur.cancel(errCancelled)
			}
		case wire.Stdin:
			if cur != nil && !cur.stdin.write(p) {
				return
			}
		default:
			return
		}
	}
}

// operation is one request under way.
type operation struct {
	st     *wire.Stream
	req    wire.Req
	fds    []int // the operation's to close
	ctx    context.Context
	cancel context.CancelCauseFunc
	stdin  *stdin
	done   chan struct{}
}

var (
	errCancelled  = errors.New("cancelled")
	errClientLeft = errors.New("the client has gone")
)

// run does one operation and sends its result.
func (s *server) run(o *operation) {
	defer close(o.done)
	defer o.cancel(nil)
	defer o.stdin.close()
	res := func() (res wire.Res) {
		defer func() {
			if r := recover(); r != nil {
				res = wire.Res{Kind: wire.KindInternal, Error: fmt.Sprintf("fault in the agent: %v", r)}
			}
			closeFDs(o.fds)
		}()
		if d := o.req.Deadline; d != 0 && time.Now().UnixNano() > d {
			return wire.Res{Kind: wire.KindLate, Error: "the request arrived after its deadline and was not started"}
		}
		return s.do(o)
	}()
	if s.life.ending() {
		// What killed the command was the sandbox's end: its code is not the command's result.
		_ = o.st.Conn.Close()
		return
	}
	if err := o.st.WriteJSON(wire.Result, res); err != nil {
		_ = o.st.Conn.Close()
	}
}

func (s *server) do(o *operation) wire.Res {
	switch o.req.Op {
	case wire.OpExec:
		return s.exec(o)
	case wire.OpPresence:
		return s.presence(o)
	case wire.OpUpload:
		return s.upload(o)
	case wire.OpDownload:
		return s.download(o)
	case wire.OpWrite:
		return s.write(o)
	case wire.OpDefaults:
		s.setDefaults(o.req.Defaults)
		return wire.Res{}
	case wire.OpHandover:
		s.life.handover()
		return wire.Res{}
	case wire.OpFreeze:
		return s.freeze(true)
	case wire.OpThaw:
		return s.freeze(false)
	case wire.OpShutdown:
		s.life.end("its owner stopped it", 0)
		<-o.ctx.Done() // the end of the stream is the answer
		return wire.Res{}
	default:
		return wire.Res{Kind: wire.KindInvalid, Error: fmt.Sprintf("unknown operation %q", o.req.Op)}
	}
}

// setDefaults changes what commands get that do not say otherwise; what is empty goes back to what the agent was started with.
func (s *server) setDefaults(d *wire.Defaults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.defaults = wire.Defaults{User: s.cfg.User, Workdir: s.cfg.Workdir}
	if d == nil {
		return
	}
	if d.User != "" {
		s.defaults.User = d.User
	}
	if d.Workdir != "" {
		s.defaults.Workdir = d.Workdir
	}
}

// presence greets a client and stays until one of both leaves.
func (s *server) presence(o *operation) wire.Res {
	host, _ := os.Hostname()
	sh, _ := s.shell.Find()
	s.mu.Lock()
	info := wire.Info{Version: wire.Version, PID: os.Getpid(), Hostname: host, Shell: sh, Defaults: s.defaults}
	s.mu.Unlock()
	forget := s.life.onFarewell(func(reason string) {
		_ = o.st.WriteJSON(wire.Farewell, wire.Goodbye{Reason: reason})
	})
	defer forget()
	if err := o.st.WriteJSON(wire.Meta, info); err != nil {
		return wire.Res{}
	}
	s.main.Do(s.startEntrypoint)
	<-o.ctx.Done()
	return wire.Res{}
}

func (s *server) secret() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// claimer lets root, or a peer with the agent's own user, bring the token to an agent that has none.
func (s *server) claimer(c net.Conn) func([]byte) ([]byte, error) {
	if !s.cfg.Claim || s.secret() != nil {
		return nil
	}
	return func(given []byte) ([]byte, error) {
		uid := -1
		if uc, ok := c.(*net.UnixConn); ok {
			if rc, err := uc.SyscallConn(); err == nil {
				_ = rc.Control(func(fd uintptr) {
					if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
						uid = int(cred.Uid)
					}
				})
			}
		}
		if uid != 0 && uid != os.Getuid() {
			return nil, fmt.Errorf("user %d may not claim this agent", uid)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.token != nil {
			return nil, errors.New("this agent has been claimed")
		}
		s.token = append([]byte(nil), given...)
		return s.token, nil
	}
}

func closeFDs(fds []int) {
	for i, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
			fds[i] = -1
		}
	}
}
