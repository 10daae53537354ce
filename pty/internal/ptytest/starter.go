// Package ptytest forks processes for tests of sessions.
package ptytest

import (
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

// Starter runs commands with this machine's sh, as the test's own user.
type Starter struct{}

// heedSignals lets commands get signals also where the tests were started with them ignored, as by nohup or a shell's "&":
// children inherit that a signal is ignored, not that it is handled.
var heedSignals = sync.OnceFunc(func() {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
})

// Start implements ptyserver.Starter.
func (Starter) Start(spec ptyserver.Spec, files [3]*os.File) (ptyserver.Process, error) {
	heedSignals()
	if _, err := os.Stat(spec.Cwd); spec.Cwd != "" && err != nil {
		return nil, err
	}
	args := []string{"-c", spec.Command}
	if spec.Command == "" {
		args = nil
	}
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = spec.Cwd
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(kv string) bool { return kv == "TERM" }), "PS1=$ ", "TERM=dumb")
	for k, v := range spec.Env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: spec.Terminal}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		// The state tells everything.
		_ = cmd.Wait()
	}()
	return p, nil
}

type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *process) Done() <-chan struct{} { return p.done }

func (p *process) Code() int {
	ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) Signal(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

func (p *process) End() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}
