package execd

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
)

const (
	// interruptGrace is what an interrupted command has to end by itself.
	interruptGrace = 3 * time.Second
	// notStarted is the exit code of a command that could not be started.
	notStarted = 255
)

// program is what is to be forked.
type program struct {
	command  string   // for the shell; or
	argv     []string // without one
	cwd      string
	envs     map[string]string
	user     string   // a name; or
	uid      *uint32  // an id; neither is the daemon's own user
	gid      *uint32  // instead of the user's
	bash     []string // options with which bash is to be run; it has to be there
	terminal bool
}

// child is a process that was forked, the leader of its own group and session.
type child struct {
	pid    int
	done   chan struct{} // closed when it has been waited for
	status syscall.WaitStatus
}

// fork starts a program with these standard streams, and further descriptors
// from 3 on. The files are the caller's to close.
func (s *Server) fork(p program, files ...*os.File) (*child, error) {
	env := s.environ(p.envs)
	attr := syscall.ProcAttr{Dir: p.cwd, Env: env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.terminal}}
	if p.uid != nil {
		p.user = strconv.FormatUint(uint64(*p.uid), 10)
	}
	if p.user != "" {
		who, err := s.users.Resolve(p.user)
		if err != nil {
			return nil, err
		}
		cred := *who.Cred
		if p.gid != nil {
			cred.Gid = *p.gid
		}
		attr.Sys.Credential = &cred
	}
	path, argv, script, err := s.commandLine(p, env)
	if err != nil {
		return nil, err
	}
	if script != nil {
		defer script.Close()
		files = append(files[:3:3], script)
	}
	for _, f := range files {
		if cred := attr.Sys.Credential; cred != nil && (p.terminal || !isDevice(f)) {
			// So that the command's user may open /dev/stdout; where it can't be, writing to it works all the same.
			_ = f.Chown(int(cred.Uid), int(cred.Gid))
		}
		attr.Files = append(attr.Files, f.Fd())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errEnding
	}
	c := &child{done: make(chan struct{})}
	s.running.Add(1)
	c.pid, err = s.reap.StartThen(path, argv, &attr, func(ws syscall.WaitStatus) {
		defer s.running.Done()
		c.status = ws
		s.mu.Lock() // not before fork is through
		delete(s.children, c)
		s.mu.Unlock()
		close(c.done)
	})
	if err != nil {
		s.running.Done()
		return nil, fmt.Errorf("fork/exec %s: %w", path, err)
	}
	s.children[c] = struct{}{}
	return c, nil
}

// isDevice tells whether a file is one of everybody's, as /dev/null is.
func isDevice(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&fs.ModeDevice != 0
}

// commandLine finds out what is executed for a program. script has to become descriptor 3.
func (s *Server) commandLine(p program, env []string) (path string, argv []string, script *os.File, err error) {
	if len(p.argv) > 0 {
		path, err := process.LookPath(p.argv[0], p.cwd, process.LookupEnv(env, "PATH"))
		if err != nil {
			return "", nil, nil, fmt.Errorf("%s: %w", p.argv[0], err)
		}
		return path, p.argv, nil, nil
	}
	// Looked up each time, since an image that has no bash may get one, and not in the command's own PATH.
	search := process.LookupEnv(s.cfg.Env, "PATH")
	path, err = process.LookPath("bash", "/", search)
	if err != nil && p.bash != nil {
		return "", nil, nil, errors.New("bash is not installed in this sandbox; sessions need it")
	}
	if err != nil {
		if path, err = process.LookPath("sh", "/", search); err != nil {
			return "", nil, nil, fmt.Errorf("this sandbox has no shell: neither bash nor sh in %s", search)
		}
	}
	argv = append([]string{filepath.Base(path)}, p.bash...)
	if p.command == "" {
		return path, argv, nil, nil
	}
	arg, script, err := process.CommandArg(p.command)
	if err != nil {
		return "", nil, nil, err
	}
	return path, append(argv, "-c", arg), script, nil
}

// alive tells whether the process has not been waited for.
func (c *child) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// signal sends a signal to the process's group; a group that has just ended needs none.
func (c *child) signal(sig syscall.Signal) { _ = unix.Kill(-c.pid, sig) }

// end asks the group to end, and kills what is left of it after the grace. It returns when the process has ended.
func (c *child) end(grace time.Duration) {
	if !c.alive() {
		return
	}
	c.signal(unix.SIGTERM)
	for step, until := time.Millisecond, time.Now().Add(grace); time.Now().Before(until); step = min(2*step, 20*time.Millisecond) {
		if !c.alive() && unix.Kill(-c.pid, 0) != nil {
			return
		}
		time.Sleep(step)
	}
	c.signal(unix.SIGKILL)
	select {
	case <-c.done:
	case <-time.After(process.KillTimeout): // stuck in the kernel
	}
}

// outcome is the exit code as this daemon's clients know it, -1 for death by a signal, and its reason.
func (c *child) outcome() (code int, reason string) {
	switch ws := c.status; {
	case ws.Signaled():
		reason = "signal: " + ws.Signal().String()
		if ws.CoreDump() {
			reason += " (core dumped)"
		}
		return -1, reason
	case ws.ExitStatus() != 0:
		return ws.ExitStatus(), "exit status " + strconv.Itoa(ws.ExitStatus())
	default:
		return 0, ""
	}
}

// newID makes the id of a command.
func newID() string {
	var b [16]byte
	// Never fails: the runtime ends the program without randomness.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
