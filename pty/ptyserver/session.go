package ptyserver

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// state of a session only moves forward.
type state int

const (
	created state = iota
	starting
	running
	ended
)

// session is one process and its retained output. At most one holder is attached to it.
type session struct {
	id   string
	srv  *Server
	spec Spec

	mu      sync.Mutex
	changed *sync.Cond // of anything below, except for what the next two wait for
	news    *sync.Cond // something for the holder's sender
	typed   *sync.Cond // input, or the end, for whoever feeds the process
	state   state
	failure error // why the process could not be started
	proc    Process
	streams *streams
	typing  syscall.RawConn // of the process's input
	code    int
	rows    int
	cols    int
	over    chan struct{} // closed with the state ended
	gone    bool          // deleted

	ring   ring
	holder *holder
	last   string // the name of the last holder
	// sent is up to where the holder has been sent output, got up to where it has said that
	// it got it. What it may not have got is not driven out of the ring as long as there
	// is a holder, or one that lost its connection has a claim: the process waits instead.
	sent    int64
	got     int64
	flow    bool // it does say so
	claim   *claim
	spans   []span
	waiting int // how many of the process's streams wait

	input     []byte
	inputSize int   // with what is being written to the process
	accepted  int64 // bytes of input ever queued
	taken     int64 // those that were given to the process
}

// claim is what a holder keeps for a while that lost its connection.
type claim struct{ ticks int }

var (
	errHeld    = errors.New("another client is already connected")
	errDeleted = errors.New("the session was deleted")
	errTaken   = errors.New("another client has taken the session over")
)

func newSession(srv *Server, id string, spec Spec, rows, cols int) *session {
	s := &session{id: id, srv: srv, spec: spec, rows: rows, cols: cols, ring: ring{budget: srv.budget}, over: make(chan struct{})}
	s.changed, s.news, s.typed = sync.NewCond(&s.mu), sync.NewCond(&s.mu), sync.NewCond(&s.mu)
	return s
}

// stir has everybody look again. mu is held.
func (s *session) stir() {
	s.changed.Broadcast()
	s.news.Broadcast()
	s.typed.Broadcast()
}

// attach makes h the holder. In the same moment it is decided what is replayed
// to it and what follows live, so nothing falls between.
func (s *session) attach(h *holder, takeover bool, since int64, terminal bool) error {
	s.mu.Lock()
	switch {
	case s.gone:
		s.mu.Unlock()
		return errDeleted
	case h.back && h.name != s.last:
		s.mu.Unlock()
		return errTaken
	case s.holder != nil && !takeover:
		s.mu.Unlock()
		return errHeld
	case s.holder != nil:
		s.holder.evict()
	}
	s.holder, s.last, s.claim, s.spans = h, h.name, nil, nil
	h.replay, h.replayAt = s.ring.appendFrom(h.replay, since)
	h.missed = h.replayAt > since
	s.sent, s.got, s.flow = s.ring.total, h.replayAt, h.flow
	first := s.state == created
	if first {
		s.state = starting
		s.spec.Terminal = terminal
	}
	s.stir()
	s.mu.Unlock()
	if first {
		s.start()
	}
	return nil
}

// wake has the holder's sender look again.
func (s *session) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.news.Broadcast()
}

// held tells whether there is a holder.
func (s *session) held() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder != nil
}

// release ends the hold of h. When its connection broke, what it has not got is
// kept for a while, for it to come back.
func (s *session) release(h *holder, broken bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != h {
		return
	}
	s.holder = nil
	if broken && s.state == running && !s.gone {
		s.claim = &claim{ticks: claimTicks}
		go s.expire(s.claim)
	}
	s.stir()
}

// expire ends a claim in time. It counts ticks rather than looking at the clock,
// since a sandbox may stand still in between.
func (s *session) expire(c *claim) {
	tick := time.NewTicker(s.srv.times.tick)
	defer tick.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-tick.C:
		}
		if s.ticked(c) {
			return
		}
	}
}

// ticked takes a tick off a claim and tells whether it is over.
func (s *session) ticked(c *claim) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claim != c {
		return true
	}
	if !s.srv.still.Load() {
		c.ticks--
	}
	if c.ticks > 0 {
		return false
	}
	s.claim = nil
	s.stir()
	return true
}

// start forks the process.
func (s *session) start() {
	open := openPipes
	if s.spec.Terminal {
		open = func() (*streams, error) { return openTerminal(s.rows, s.cols) }
	}
	st, err := open()
	var proc Process
	if err == nil {
		proc, err = s.srv.starter.Start(s.spec, st.child)
		st.closeChild()
		if err != nil {
			st.close()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.stir()
	if err != nil {
		s.state, s.failure, s.code = ended, err, -1
		close(s.over)
		return
	}
	s.state, s.proc, s.streams = running, proc, st
	s.typing, _ = st.in.SyscallConn() // fails for a file that is closed
	go s.run(proc, st)
	go s.feed(st.in)
}

// run follows the process to its end.
func (s *session) run(proc Process, st *streams) {
	var wg sync.WaitGroup
	wg.Go(func() { copyOutput(st.out, proc.Done(), func(p []byte) { s.produce(proto.Stdout, p) }) })
	if st.err != nil {
		wg.Go(func() { copyOutput(st.err, proc.Done(), func(p []byte) { s.produce(proto.Stderr, p) }) })
	}
	<-proc.Done()
	wg.Wait()
	s.mu.Lock()
	s.state, s.code = ended, proc.Code()
	close(s.over)
	s.stir()
	s.mu.Unlock()
	st.close()
}

// exit gives the exit code to the holder; false when h is not the holder any more.
func (s *session) exit(h *holder) (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.code, s.holder == h && s.state == ended
}

// resize changes the terminal's size, also before the process starts.
func (s *session) resize(h *holder, rows, cols int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != h || !proto.ValidSize(rows, cols) {
		return
	}
	s.rows, s.cols = rows, cols
	if s.state == running {
		// Fails only for a terminal that is being closed.
		_ = s.streams.resize(rows, cols)
	}
}

// signal sends a signal to the process's group; unknown names are dropped.
func (s *session) signal(h *holder, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != h || s.state != running || !slices.Contains(proto.Signals, name) {
		return
	}
	s.proc.Signal(signals[name])
}

var signals = map[string]syscall.Signal{
	"SIGHUP": syscall.SIGHUP, "SIGINT": syscall.SIGINT, "SIGKILL": syscall.SIGKILL,
	"SIGQUIT": syscall.SIGQUIT, "SIGTERM": syscall.SIGTERM,
}

// info describes the session.
func (s *session) info() proto.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	info := proto.Info{SessionID: s.id, Running: s.state == running, OutputOffset: s.ring.total}
	if s.state == ended {
		code := s.code
		info.ExitCode = &code
	}
	return info
}

// delete ends the process with all it started and forgets the output.
func (s *session) delete() {
	s.mu.Lock()
	s.gone, s.claim = true, nil
	for s.state == starting {
		s.changed.Wait()
	}
	proc, alive := s.proc, s.state == running
	if s.state == created {
		s.state, s.failure, s.code = ended, errDeleted, -1
		close(s.over)
	}
	s.stir()
	s.mu.Unlock()
	if alive {
		proc.End()
		<-s.over
	}
	s.mu.Lock()
	h := s.holder
	s.mu.Unlock()
	if h != nil {
		h.finish()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ring.release()
}

// dropHolder breaks the holder's connection.
func (s *session) dropHolder() {
	s.mu.Lock()
	h := s.holder
	s.mu.Unlock()
	if h != nil {
		h.drop()
	}
}

// idle tells whether the session has ended and nobody holds it.
func (s *session) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == ended && s.holder == nil
}

// shrink forgets the output of a session that has ended and nobody holds.
func (s *session) shrink() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != ended || s.holder != nil || len(s.ring.buf) == 0 {
		return false
	}
	s.ring.release()
	return true
}
