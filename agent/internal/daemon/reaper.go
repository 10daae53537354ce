package daemon

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper starts processes and collects every child of the agent: those it
// started and the orphans that the kernel gave it. It alone calls wait.
type reaper struct {
	// mu is held while a process is started, so that one that ends at once is
	// known before its end is looked up.
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
	oom     *oomScore // nil when commands keep the agent's score

	started chan struct{} // there may be children again
}

func newReaper(oom *oomScore) *reaper {
	r := &reaper{waiting: map[int]chan syscall.WaitStatus{}, oom: oom, started: make(chan struct{}, 1)}
	go r.loop()
	return r
}

// start forks and executes a program. The channel gives its status once.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	restore := r.oom.forCommand()
	pid, err := syscall.ForkExec(path, argv, attr)
	restore()
	if err != nil {
		return 0, nil, err
	}
	ch := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = ch
	select {
	case r.started <- struct{}{}:
	default:
	}
	return pid, ch, nil
}

// loop runs for as long as the agent does.
func (r *reaper) loop() {
	// Without children wait fails at once; an orphan can still arrive from a
	// process that entered the sandbox from outside, which only its SIGCHLD tells.
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == nil:
			r.mu.Lock()
			ch := r.waiting[pid]
			delete(r.waiting, pid)
			r.mu.Unlock()
			if ch != nil {
				ch <- ws
			}
		case errors.Is(err, unix.EINTR):
		default:
			select {
			case <-r.started:
			case <-sigchld:
			}
		}
	}
}

// oomScore lets commands be better victims of the kernel's out-of-memory
// killer than the agent. The score is a process's own and inherited, so the
// agent wears the command's score for the moment of the fork.
type oomScore struct {
	f   *os.File
	own []byte
}

// newOOMScore reads the agent's own score; nil when it can't be changed.
func newOOMScore() *oomScore {
	const path = "/proc/self/oom_score_adj"
	own, err := os.ReadFile(path)
	if err != nil || len(own) == 0 || own[0] != '-' {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	return &oomScore{f: f, own: own}
}

func (o *oomScore) forCommand() (restore func()) {
	if o == nil {
		return func() {}
	}
	if _, err := o.f.WriteAt([]byte("0"), 0); err != nil {
		return func() {}
	}
	return func() { _, _ = o.f.WriteAt(o.own, 0) }
}
