package execd

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

const (
	tokenHeader = "X-EXECD-ACCESS-TOKEN"
	// headTime is for the head of a request; bodies may take as long as they do.
	headTime = time.Minute
	// endTime is what open requests have when the daemon is asked to end.
	endTime = 5 * time.Second
	// retained is how much output all terminal sessions together may retain, unless
	// the sandbox's memory is so small that an eighth of it is less.
	retained     = 64 << 20
	retainedPart = 8
)

// Server is the daemon. It is safe for concurrent use; whoever made it closes it.
type Server struct {
	cfg       Config
	users     *process.Users
	reap      *process.Reaper
	mux       *http.ServeMux
	terminals *ptyserver.Server
	commands  commands
	sessions  sessions
	leftovers leftovers
	ctx       context.Context // ends with the daemon
	end       context.CancelFunc
	once      sync.Once

	mu       sync.Mutex
	closed   bool
	children map[*child]struct{} // processes that have not been waited for
	running  sync.WaitGroup      // requests, and what outlives them
}

// New makes a daemon that forks by way of reap.
func New(cfg Config, reap *process.Reaper) *Server {
	s := &Server{cfg: cfg, users: process.NewUsers(false), reap: reap, children: map[*child]struct{}{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.commands.byID = map[string]*command{}
	s.sessions.byID = map[string]*session{}
	s.leftovers.open = map[*os.File]struct{}{}
	limit := int64(retained)
	if m := process.MemoryLimit(); m > 0 {
		limit = min(limit, m/retainedPart)
	}
	s.terminals = ptyserver.New(starter{s}, ptyserver.NewBudget(limit))
	s.mux = http.NewServeMux()
	s.routes()
	return s
}

func (s *Server) routes() {
	m := s.mux
	m.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	m.HandleFunc("POST /command", s.runCommand)
	m.HandleFunc("DELETE /command", s.interrupt)
	// Two patterns would be ambiguous: .../status/{id} and .../{id}/logs.
	m.HandleFunc("GET /command/{one}/{two}", func(w http.ResponseWriter, r *http.Request) {
		switch one, two := r.PathValue("one"), r.PathValue("two"); {
		case one == "status":
			s.commandStatus(w, two)
		case two == "logs":
			s.commandLogs(w, r, one)
		default:
			noRoute(w)
		}
	})
	m.HandleFunc("POST /session", s.openSession)
	m.HandleFunc("POST /session/{id}/run", s.runInSession)
	m.HandleFunc("DELETE /session/{id}", s.closeSession)
	m.HandleFunc("POST /files/upload", s.upload)
	m.HandleFunc("GET /files/download", s.download)
	m.HandleFunc("GET /files/info", s.filesInfo)
	m.HandleFunc("POST /files/permissions", s.filesPermissions)
	m.HandleFunc("POST /files/mv", s.filesMove)
	m.HandleFunc("GET /files/search", s.filesSearch)
	m.HandleFunc("POST /files/replace", s.filesReplace)
	m.HandleFunc("DELETE /files", s.filesRemove)
	m.HandleFunc("POST /directories", s.makeDirectories)
	m.HandleFunc("GET /directories/list", s.listDirectory)
	m.HandleFunc("DELETE /directories", s.removeDirectories)
	m.HandleFunc("GET /metrics", s.metrics)
	m.HandleFunc("GET /metrics/watch", s.watchMetrics)
	m.HandleFunc("POST /pty", s.openTerminal)
	m.Handle("GET /pty/{id}", s.terminals.Handler())
	m.Handle("DELETE /pty/{id}", s.terminals.Handler())
	m.Handle("GET /pty/{id}/ws", s.terminals.Handler())
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.enter() {
		http.Error(w, errEnding.Error(), http.StatusServiceUnavailable)
		return
	}
	defer s.running.Done()
	if !s.admits(r) {
		reply(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized: invalid or missing header " + tokenHeader})
		return
	}
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/proxy/"); ok {
		s.forward(w, r, rest)
		return
	}
	if path == "/code" || strings.HasPrefix(path, "/code/") {
		fail(w, http.StatusNotImplemented, codeUnsupported, "there is no code interpreter in this sandbox; run a command instead")
		return
	}
	// The mux would answer HEAD for GET, and wrong methods in its own words.
	if _, pattern := s.mux.Handler(r); pattern == "" || r.Method == http.MethodHead {
		noRoute(w)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// admits tells whether a request carries the token. Hashes have the same length whatever was sent.
func (s *Server) admits(r *http.Request) bool {
	if s.cfg.Token == "" {
		return true
	}
	given, want := sha256.Sum256([]byte(r.Header.Get(tokenHeader))), sha256.Sum256([]byte(s.cfg.Token))
	return subtle.ConstantTimeCompare(given[:], want[:]) == 1
}

var errEnding = errors.New("the daemon is ending")

// enter counts a request; false: there will be no more. Whoever counts may start what running waits for.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// Close ends what runs, and returns when all of it has ended, requests too:
// whoever serves them cuts off clients that keep one waiting.
func (s *Server) Close() {
	s.once.Do(func() {
		s.mu.Lock()
		s.closed = true
		for c := range s.children {
			c.signal(unix.SIGKILL)
		}
		s.mu.Unlock()
		s.end()
		s.terminals.Close()
		s.leftovers.close()
		s.running.Wait()
		s.commands.forget()
	})
}

// Run serves until a signal asks it to end, and gives the process's exit code.
func Run(cfg Config) (int, error) {
	process.Calm() // before there is anything that its second life would not have
	l, err := net.Listen("tcp", ":"+strconv.Itoa(cfg.Port))
	if err != nil {
		return 1, fmt.Errorf("listen on port %d: %w", cfg.Port, err)
	}
	return serve(cfg, l)
}

// serve makes this process the daemon, behind a listener that it closes.
func serve(cfg Config, l net.Listener) (int, error) {
	defer l.Close()
	if at, ok := l.Addr().(*net.TCPAddr); ok {
		cfg.Port = at.Port
	}
	process.CloseInherited()
	// Handled signals are reset to their default in commands; ignored ones, as a shell leaves them to what it starts
	// in the background, would stay ignored.
	sigs := make(chan os.Signal, 4)
	signal.Notify(sigs, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	defer signal.Stop(sigs)
	// What commands leave behind is this process's to collect: process 1 may be anything.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("become the subreaper: %w", err)
	}
	if cfg.Token != "" {
		// What runs as the same user could read the token here. As root, that is allowed to look anywhere.
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return 1, fmt.Errorf("keep others from looking into this process: %w", err)
		}
	}
	// The daemon is small; let it stay small rather than fast at collecting garbage.
	debug.SetGCPercent(50)
	// It passes things on, in many small steps. With a second processor most of these wake another thread: that takes
	// more time than the thread then saves, also for large outputs.
	runtime.GOMAXPROCS(1)
	s := New(cfg, process.NewReaper(nil))
	over := make(chan error, 1)
	h := s.httpServer()
	go func() { over <- h.Serve(l) }()
	for {
		select {
		case sig := <-sigs:
			if sig != unix.SIGTERM {
				continue // meant for somebody else, or sent by a command
			}
			late := time.AfterFunc(endTime, func() { _ = h.Close() })
			defer late.Stop()
			s.Close()
			_ = h.Close() // what is left are connections without a request
			<-over
			return 0, nil
		case err := <-over:
			s.Close()
			return 1, fmt.Errorf("serve: %w", err)
		}
	}
}

func (s *Server) httpServer() *http.Server {
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headTime,
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		// What clients do wrong is their business, and this process has no log.
		ErrorLog: log.New(io.Discard, "", 0),
	}
}
