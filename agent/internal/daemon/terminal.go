package daemon

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

const (
	// retained is how much output all terminal sessions together may retain, unless
	// the sandbox's memory is so small that an eighth of it is less.
	retained     = 64 << 20
	retainedPart = 8
	// terminalType is what programs in a terminal are told when nobody says it: every list of terminals has it.
	terminalType = "xterm"
)

// terminals is the service of terminal sessions, which is made at its first use.
type terminals struct {
	mu     sync.Mutex
	server *ptyserver.Server
}

// terminals gives the service.
func (s *server) terminals() *ptyserver.Server {
	s.terms.mu.Lock()
	defer s.terms.mu.Unlock()
	if s.terms.server == nil {
		limit := int64(retained)
		if m := process.MemoryLimit(); m > 0 {
			limit = min(limit, m/retainedPart)
		}
		s.terms.server = ptyserver.New(starter{s}, ptyserver.NewBudget(limit))
	}
	return s.terms.server
}

// still tells the sessions that the sandbox stands still, or moves again.
func (t *terminals) still(still bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.server != nil {
		t.server.Still(still)
	}
}

// halt lets go of the clients when the sandbox ends.
func (t *terminals) halt() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.server != nil {
		t.server.Halt()
	}
}

// starter forks the processes of sessions as those of commands.
type starter struct{ s *server }

// Start implements ptyserver.Starter.
func (st starter) Start(spec ptyserver.Spec, files [3]*os.File) (ptyserver.Process, error) {
	s := st.s
	id := make([]byte, 8)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	tag := process.ExecTag + "=" + hex.EncodeToString(id)
	e := wire.Exec{Command: spec.Command, Cwd: spec.Cwd, User: spec.User, Env: maps.Clone(spec.Env)}
	if e.Env == nil {
		e.Env = map[string]string{}
	}
	setDefault := func(name, value string) {
		if _, given := e.Env[name]; !given && process.LookupEnv(s.base, name) == "" {
			e.Env[name] = value
		}
	}
	if spec.Terminal {
		setDefault("TERM", terminalType)
	}
	if spec.Command == "" {
		argv, err := s.interactive()
		if err != nil {
			return nil, err
		}
		e.Argv = argv
		// What is typed here is no part of anybody's history.
		setDefault("HISTFILE", "")
	}
	p, res := s.prepare(e, tag)
	if p == nil {
		return nil, errors.New(strings.TrimSpace(res.Error + res.Message))
	}
	defer p.close()
	p.attr.Sys.Setctty = spec.Terminal
	if cred := p.attr.Sys.Credential; spec.Terminal && cred != nil {
		// The terminal belongs to its user, as after a login. Where that is not allowed it works all the same.
		_ = files[0].Chown(int(cred.Uid), -1)
	}
	for _, f := range files {
		p.attr.Files = append(p.attr.Files, f.Fd())
	}
	for _, f := range p.files {
		p.attr.Files = append(p.attr.Files, f.Fd())
	}
	pid, status, err := s.reap.Start(p.path, p.argv, &p.attr)
	if err != nil {
		res := startError(&e, p, err)
		return nil, errors.New(strings.TrimSpace(res.Error + res.Message))
	}
	t := &terminal{s: s, tree: process.Tree{Leader: pid, Tag: []byte(tag), Hangup: true}, done: make(chan struct{})}
	go func() {
		t.code = process.ExitCode(<-status)
		close(t.done)
	}()
	return t, nil
}

// interactive is the shell as it is run for somebody who types. It reads nobody's
// start-up files, so that what a session shows does not depend on them.
func (s *server) interactive() ([]string, error) {
	sh, err := s.shell.Find()
	if err != nil {
		return nil, err
	}
	if filepath.Base(sh) == "bash" {
		return []string{sh, "--norc", "--noprofile"}, nil
	}
	return []string{sh}, nil
}

// terminal is a session's process.
type terminal struct {
	s    *server
	tree process.Tree
	done chan struct{}
	code int // valid when done is closed
}

// Done implements ptyserver.Process.
func (t *terminal) Done() <-chan struct{} { return t.done }

// Code implements ptyserver.Process.
func (t *terminal) Code() int { return t.code }

// Signal implements ptyserver.Process.
func (t *terminal) Signal(sig syscall.Signal) {
	// A group that has just ended needs no signal.
	_ = unix.Kill(-t.tree.Leader, sig)
}

// End implements ptyserver.Process.
func (t *terminal) End() {
	t.tree.End(t.s.cfg.KillGrace)
	<-t.done
}
