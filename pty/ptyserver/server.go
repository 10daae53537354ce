// Package ptyserver keeps terminal sessions: processes with a terminal or pipes
// whose output is retained, so that a client can leave and come back, or another one take over.
//
// It knows terminals, not users or sandboxes: a Starter forks the processes.
package ptyserver

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// Spec is what a session runs.
type Spec struct {
	Command  string // "" is the interactive shell
	Cwd      string
	Env      map[string]string
	User     string
	Terminal bool // with a terminal; else three pipes
}

// Process is what a Starter has forked. Its process group is its own.
type Process interface {
	// Done is closed when the process has ended and was waited for.
	Done() <-chan struct{}
	// Code is its exit code, 128+n for death by signal n. Valid after Done.
	Code() int
	// Signal sends a signal to its group.
	Signal(sig syscall.Signal)
	// End ends it with all it started, and returns when that is done.
	End()
}

// Starter forks a session's process with those standard streams. Of a session
// with a terminal all three are the terminal, which becomes the process's
// controlling one. The server closes the files.
type Starter interface {
	Start(spec Spec, files [3]*os.File) (Process, error)
}

const (
	// maxSessions bounds the records; ended ones make room for new ones.
	maxSessions = 1024
	// claimTicks is how long, in seconds, a session waits for a holder that lost its connection.
	claimTicks = 10
	maxBody    = 64 << 20 // a command and its environment
)

// times relate to each other: three pings may get lost before silence counts,
// and a holder that takes nothing is dropped before silence could tell.
type times struct {
	tick     time.Duration
	ping     time.Duration
	silence  time.Duration // without any message the holder is dead
	stall    time.Duration // without progress of a write the holder is dead
	farewell time.Duration // for a client to react to the end
}

var standard = times{
	tick:     time.Second,
	ping:     20 * time.Second,
	silence:  60 * time.Second,
	stall:    10 * time.Second,
	farewell: time.Second,
}

// Server holds the sessions. It is safe for concurrent use.
type Server struct {
	starter Starter
	budget  *Budget
	times   times
	still   atomic.Bool // the sandbox stands still: claims do not expire
	halted  atomic.Bool // the sandbox ends: what happens to processes now is not their own doing
	http    *http.Server
	conns   chan net.Conn
	closed  chan struct{}
	serving sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]*session
	order    []*session // oldest first
}

// New makes a server whose sessions are forked by starter. It serves what ServeConn is given until Close.
func New(starter Starter, budget *Budget) *Server { return newServer(starter, budget, standard) }

func newServer(starter Starter, budget *Budget, t times) *Server {
	s := &Server{starter: starter, budget: budget, times: t, conns: make(chan net.Conn), closed: make(chan struct{}), sessions: map[string]*session{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /pty", s.create)
	mux.HandleFunc("GET /pty/{id}", s.get)
	mux.HandleFunc("DELETE /pty/{id}", s.remove)
	mux.HandleFunc("GET /pty/{id}/ws", s.attach)
	s.http = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: t.stall,
		IdleTimeout:       t.silence,
		// What clients do wrong is their business, and this process has no log.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	// Ends when the listener is closed.
	s.serving.Go(func() { _ = s.http.Serve(listener{s}) })
	return s
}

// ServeConn serves one connection and returns when it has ended.
func (s *Server) ServeConn(c net.Conn) {
	over := make(chan struct{})
	conn := &served{Conn: c, closing: sync.OnceFunc(func() { close(over) })}
	select {
	case s.conns <- steady{conn, s.times}:
	case <-s.closed:
		_ = c.Close()
		return
	}
	<-over
}

// Still tells that the sandbox stands still, or moves again: nobody loses
// claims by that.
func (s *Server) Still(still bool) { s.still.Store(still) }

// Halt drops all clients, because the sandbox ends: they must not take for a
// process's own end what is done to it from now on.
func (s *Server) Halt() {
	s.halted.Store(true)
	s.mu.Lock()
	all := s.order
	s.mu.Unlock()
	for _, one := range all {
		one.dropHolder()
	}
}

// Close ends all sessions and connections.
func (s *Server) Close() {
	s.mu.Lock()
	all := s.order
	s.order, s.sessions = nil, map[string]*session{}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, one := range all {
		wg.Go(one.delete)
	}
	wg.Wait()
	close(s.closed)
	_ = s.http.Close()
	s.serving.Wait()
}

// served tells when a connection has been closed.
type served struct {
	net.Conn
	closing func()
}

// Plain implements prompt.Wrapper.
func (c *served) Plain() net.Conn { return c.Conn }

func (c *served) Close() error {
	defer c.closing()
	return c.Conn.Close()
}

// listener gives the connections of ServeConn to the HTTP server.
type listener struct{ s *Server }

func (l listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.s.conns:
		return c, nil
	case <-l.s.closed:
		return nil, net.ErrClosed
	}
}

func (listener) Close() error   { return nil }
func (listener) Addr() net.Addr { return &net.UnixAddr{Net: "unix"} }

// create makes the record of a session; its process starts with the first attach.
func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var c proto.Create
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &c)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, proto.CodeBadBody, "error parsing request: %v", err)
		return
	}
	made := proto.Created{Rows: c.Rows, Cols: c.Cols}
	rows, cols := c.Rows, c.Cols
	if rows == 0 && cols == 0 {
		rows, cols = 24, 80
	}
	if !proto.ValidSize(rows, cols) {
		fail(w, http.StatusBadRequest, proto.CodeBadBody, "rows and cols must be between 1 and 65535")
		return
	}
	made.SessionID = newID()
	one := newSession(s, made.SessionID, Spec{Command: c.Command, Cwd: c.Cwd, Env: c.Env, User: c.User}, rows, cols)
	if !s.add(one) {
		fail(w, http.StatusServiceUnavailable, proto.CodeTooMany, "there are %d sessions whose processes run", maxSessions)
		return
	}
	reply(w, http.StatusCreated, made)
}

// add records a session. The oldest that have ended make room, for it and for its output.
func (s *Server) add(one *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, old := range s.order {
		if !s.budget.exhausted() {
			break
		}
		old.shrink()
	}
	if len(s.order) >= maxSessions && !s.dropEnded() {
		return false
	}
	s.sessions[one.id] = one
	s.order = append(s.order, one)
	return true
}

// dropEnded forgets the oldest session that has ended and nobody holds. mu is held.
func (s *Server) dropEnded() bool {
	for i, old := range s.order {
		if old.idle() {
			old.delete()
			delete(s.sessions, old.id)
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			return true
		}
	}
	return false
}

func (s *Server) find(w http.ResponseWriter, r *http.Request) *session {
	id := r.PathValue("id")
	s.mu.Lock()
	one := s.sessions[id]
	s.mu.Unlock()
	if one == nil {
		fail(w, http.StatusNotFound, proto.CodeNotFound, "pty session %s not found", id)
	}
	return one
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) {
	if one := s.find(w, r); one != nil {
		reply(w, http.StatusOK, one.info())
	}
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	one := s.find(w, r)
	if one == nil {
		return
	}
	s.mu.Lock()
	_, mine := s.sessions[one.id]
	delete(s.sessions, one.id)
	for i, o := range s.order {
		if o == one {
			s.order = append(s.order[:i:i], s.order[i+1:]...)
			break
		}
	}
	s.mu.Unlock()
	if mine {
		one.delete()
	}
	w.WriteHeader(http.StatusOK)
}

var upgrader = websocket.Upgrader{
	ReadBufferSize:  4 << 10,
	WriteBufferSize: 4 << 10,
	// Whoever can open a connection has authenticated; no browser can.
	CheckOrigin: func(*http.Request) bool { return true },
}

func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	one := s.find(w, r)
	if one == nil {
		return
	}
	if s.halted.Load() {
		http.Error(w, "the sandbox ends", http.StatusServiceUnavailable)
		return
	}
	q := r.URL.Query()
	takeover := q.Get("takeover") == "1"
	since, err := strconv.ParseInt(q.Get("since"), 10, 64)
	if err != nil || since < 0 {
		since = 0
	}
	if one.held() && (!takeover || !websocket.IsWebSocketUpgrade(r)) {
		fail(w, http.StatusConflict, proto.CodeHeld, "%v to pty session %s", errHeld, one.id)
		return
	}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // it has been answered
	}
	h := newHolder(one, conn, q.Get("flow") == "1")
	h.name, h.back = q.Get("holder"), q.Get("back") == "1"
	if err := one.attach(h, takeover, since, q.Get("pty") != "0"); err != nil {
		if errors.Is(err, errTaken) {
			h.bye(proto.CloseTakenOver, proto.ReasonTakenOver, h.times.farewell)
			return
		}
		code := proto.CodeHeld
		if errors.Is(err, errDeleted) {
			code = proto.CodeNotFound
		}
		// Lost to another client since it was asked above.
		_ = h.message(websocket.TextMessage, proto.Control{Type: proto.TypeError, Error: err.Error(), Code: code}.Line())
		h.drop()
		return
	}
	h.hold()
}

func reply(w http.ResponseWriter, status int, v any) {
	p, err := json.Marshal(v)
	if err != nil {
		status, p = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// A client that has gone needs no answer.
	_, _ = w.Write(p)
}

func fail(w http.ResponseWriter, status int, code, format string, args ...any) {
	reply(w, status, proto.Failure{Code: code, Message: fmt.Sprintf(format, args...)})
}

// newID makes a random UUID.
func newID() string {
	var b [16]byte
	// Never fails: the runtime ends the program without randomness.
	_, _ = rand.Read(b[:])
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Handler serves the routes for a caller that has a listener of its own.
func (s *Server) Handler() http.Handler { return s.http.Handler }
