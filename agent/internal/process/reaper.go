package process

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Reaper starts processes and collects every child of the agent: those it
// started and the orphans that the kernel gave it. It alone calls wait.
type Reaper struct {
	// mu is held while a process is started, so that one that ends at once is
	// known before its end is looked up.
	mu      sync.Mutex
	waiting map[int]func(syscall.WaitStatus)
	oom     *OOMScore // nil when commands keep the agent's score
	each    bool      // only what it started is waited for
}

// NewReaper collects every child of this process for as long as the process runs. oom may be nil.
func NewReaper(oom *OOMScore) *Reaper {
	r := &Reaper{waiting: map[int]func(syscall.WaitStatus){}, oom: oom}
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	go r.loop(sigchld)
	return r
}

// NewWaiter makes a reaper that collects what it started and nothing else: for
// a process that has children of its own.
func NewWaiter() *Reaper { return &Reaper{waiting: map[int]func(syscall.WaitStatus){}, each: true} }

// Start forks and executes a program. The channel gives its status once.
func (r *Reaper) Start(path string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	ch := make(chan syscall.WaitStatus, 1)
	pid, err := r.StartThen(path, argv, attr, func(ws syscall.WaitStatus) { ch <- ws })
	if err != nil {
		return 0, nil, err
	}
	return pid, ch, nil
}

// StartThen is Start for who needs no goroutine to wait: ended is called once with the status, maybe before StartThen
// has returned. Until it returns, no other end is noticed.
func (r *Reaper) StartThen(path string, argv []string, attr *syscall.ProcAttr, ended func(syscall.WaitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	restore := r.oom.forCommand()
	runtime.LockOSThread()
	lendSlack()
	pid, err := syscall.ForkExec(path, argv, attr)
	runtime.UnlockOSThread()
	restore()
	if err != nil {
		return 0, err
	}
	if r.each {
		go func() {
			var ws syscall.WaitStatus
			for {
				if _, err := syscall.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
					break
				}
			}
			ended(ws)
		}()
		return pid, nil
	}
	r.waiting[pid] = ended
	return pid, nil
}

// loop runs for as long as the agent does. It never waits inside of wait: a processor of the runtime would be lost
// there until the runtime notices, and meanwhile nothing else is done where there is only one.
func (r *Reaper) loop(sigchld <-chan os.Signal) {
	for {
		r.collect()
		<-sigchld
	}
}

// collect takes the status of every child that has ended. One that ends meanwhile sends its signal again.
func (r *Reaper) collect() {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || pid == 0: // there are none, or they all run
			return
		}
		r.mu.Lock()
		ended := r.waiting[pid]
		delete(r.waiting, pid)
		r.mu.Unlock()
		if ended != nil {
			ended(ws)
		}
	}
}

// OOMScore lets commands be better victims of the kernel's out-of-memory
// killer than the agent. The score is a process's own and inherited, so the
// agent wears the command's score for the moment of the fork.
type OOMScore struct {
	f   *os.File
	own []byte
}

// NewOOMScore reads the agent's own score; nil when it can't be changed.
func NewOOMScore() *OOMScore {
	const path = "/proc/self/oom_score_adj"
	own, err := os.ReadFile(path)
	if err != nil || len(own) == 0 || own[0] != '-' {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	return &OOMScore{f: f, own: own}
}

func (o *OOMScore) forCommand() (restore func()) {
	if o == nil {
		return func() {}
	}
	if _, err := o.f.WriteAt([]byte("0"), 0); err != nil {
		return func() {}
	}
	return func() { _, _ = o.f.WriteAt(o.own, 0) }
}
