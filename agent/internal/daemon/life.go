package daemon

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
)

// life decides when the sandbox ends: its time to live, the time after its last
// client, its main process, or its owner.
type life struct {
	over  chan ending // one ending is enough
	ended atomic.Bool

	mu       sync.Mutex
	clients  int
	orphan   time.Duration
	later    time.Duration // orphan time after a handover
	timer    *time.Timer   // runs while there is no client
	farewell map[int]func(string)
	next     int
}

type ending struct {
	reason string
	code   int
}

func newLife(cfg wire.ServeConfig) *life {
	l := &life{over: make(chan ending, 1), orphan: cfg.Orphan, later: cfg.Handover, farewell: map[int]func(string){}}
	if cfg.TTL > 0 {
		time.AfterFunc(cfg.TTL, func() { l.end(fmt.Sprintf("its ttl of %gs ran out", cfg.TTL.Seconds()), 0) })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arm()
	return l
}

// arm starts the orphan's clock. mu is held.
func (l *life) arm() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	if l.clients > 0 || l.orphan <= 0 {
		return
	}
	after := l.orphan
	l.timer = time.AfterFunc(after, func() {
		l.mu.Lock()
		alone := l.clients == 0
		l.mu.Unlock()
		if alone {
			l.end(fmt.Sprintf("its last client left %gs ago", after.Seconds()), 0)
		}
	})
}

func (l *life) enter() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients++
	l.arm()
}

func (l *life) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients--
	l.arm()
}

func (l *life) handover() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orphan > 0 && l.later > l.orphan {
		l.orphan = l.later
	}
	l.arm()
}

// end ends the sandbox; the first reason counts.
func (l *life) end(reason string, code int) {
	l.ended.Store(true)
	select {
	case l.over <- ending{reason, code}:
	default:
	}
}

// ending tells whether the sandbox's end has begun.
func (l *life) ending() bool { return l.ended.Load() }

func (l *life) onFarewell(f func(string)) (forget func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := l.next
	l.next++
	l.farewell[id] = f
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.farewell, id)
	}
}

// sayFarewell tells the clients, but waits for no one who does not listen.
func (l *life) sayFarewell(reason string) {
	l.mu.Lock()
	var wg sync.WaitGroup
	for _, f := range l.farewell {
		wg.Add(1)
		go func() { defer wg.Done(); f(reason) }()
	}
	l.mu.Unlock()
	told := make(chan struct{})
	go func() { wg.Wait(); close(told) }()
	select {
	case <-told:
	case <-time.After(time.Second):
	}
}

// startEntrypoint runs the sandbox's main process; its end is the sandbox's.
func (s *server) startEntrypoint() {
	argv := s.cfg.Entrypoint
	if len(argv) == 0 {
		return
	}
	fail := func(err error) {
		s.life.end(fmt.Sprintf("its entrypoint %q could not be started: %v", argv[0], err), 127)
	}
	s.mu.Lock()
	def := s.defaults
	s.mu.Unlock()
	p, res := s.prepare(wire.Exec{Argv: argv, Cwd: def.Workdir, User: def.User}, "")
	if p == nil {
		fail(fmt.Errorf("%s%s", res.Error, res.Message))
		return
	}
	p.attr.Files = []uintptr{0, 1, 2}
	p.attr.Sys.Setsid = true
	_, status, err := s.reap.Start(p.path, p.argv, &p.attr)
	if err != nil {
		fail(err)
		return
	}
	go func() {
		code := process.ExitCode(<-status)
		s.life.end(fmt.Sprintf("its entrypoint ended with code %d", code), code)
	}()
}

// killAll ends every descendant of an agent that is not process 1; for one that
// is, the kernel does it.
func (s *server) killAll() {
	for deadline := time.Now().Add(process.KillTimeout); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		n := 0
		for _, p := range s.descendants() {
			_ = unix.Kill(p.PID, unix.SIGKILL)
			n++
		}
		if n == 0 {
			return
		}
	}
}

// descendants lists what lives below the agent.
func (s *server) descendants() []process.Info {
	table := process.Table()
	in := map[int]bool{unix.Getpid(): true}
	var out []process.Info
	for grew := true; grew; {
		grew = false
		for _, p := range table {
			if in[p.PPID] && !in[p.PID] {
				in[p.PID], grew = true, true
				out = append(out, p)
			}
		}
	}
	return out
}

// freeze stops or continues everything in the sandbox but the agent.
func (s *server) freeze(stop bool) wire.Res {
	sig := unix.SIGCONT
	if stop {
		sig = unix.SIGSTOP
	}
	s.terms.still(stop)
	for range 100 {
		n := 0
		for _, p := range s.inhabitants() {
			if (p.State == 'T') != stop {
				_ = unix.Kill(p.PID, sig)
				n++
			}
		}
		if n == 0 {
			return wire.Res{}
		}
		time.Sleep(time.Millisecond)
	}
	return wire.Res{Kind: wire.KindInternal, Error: "processes keep appearing or do not react"}
}

// inhabitants are the processes of the sandbox: all there are for process 1 of
// a namespace, else the agent's descendants.
func (s *server) inhabitants() []process.Info {
	if unix.Getpid() == 1 {
		return process.Table()
	}
	return s.descendants()
}
