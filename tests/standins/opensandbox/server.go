// Package opensandbox is an OpenSandbox server on this machine's loopback, as far
// as the project speaks to one: the REST service, the proxy to each sandbox's
// daemon and the direct way to it. Its sandboxes are folders, and commands in them
// are processes of this machine. It can be told to fail in the ways that servers,
// proxies and daemons do.
package opensandbox

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

// Key is the management key that the server wants.
const Key = "standin-key"

// keyHeader is what the key is sent in.
const keyHeader = "OPEN-SANDBOX-API-KEY"

// Server is one server. Make it with Start, end it with Close.
type Server struct {
	// URL is where its routes begin.
	URL string

	public, direct *httptest.Server
	folder         string // of all sandboxes

	mu       sync.Mutex
	boxes    map[string]*box
	saved    []*saved // snapshots, oldest first
	order    []string
	made     int
	faults   []*Fault
	requests []Request
	changed  chan struct{} // closed and replaced with every request
}

// Request is one that the server has got.
type Request struct {
	Method string
	Path   string // as its receiver sees it: a daemon's without the proxy's part
	Query  string
	Header http.Header
	Body   string
	Daemon bool // it was for a sandbox's daemon
	Direct bool // and came to it without the server
}

// Fault is a failure to come.
type Fault struct {
	Method string // "" is any
	Path   string // a prefix of Request.Path
	Times  int    // how often; 0 is once
	After  int    // how many such requests go well before

	Status int               // answered instead of the request being served
	Header map[string]string // with that
	Body   string            // with that

	Delay time.Duration // before anything else
	Serve bool          // it is served all the same, and what follows happens to the answer
	Cut   int           // the answer's body ends after so many bytes; with Serve
	Rude  bool          // and the connection with it; else in good order, as the server's proxy does
	Drop  bool          // the connection ends without an answer
}

// Start begins to serve.
func Start() (*Server, error) {
	keepDescriptors()
	heedSignals()
	folder, err := os.MkdirTemp("", "opensandbox-standin-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(folder, 0o755); err != nil { // sandboxes have users of their own
		return nil, err
	}
	s := &Server{folder: folder, boxes: map[string]*box{}, changed: make(chan struct{})}
	s.public = httptest.NewServer(http.HandlerFunc(s.servePublic))
	s.direct = httptest.NewServer(http.HandlerFunc(s.serveDirect))
	s.URL = s.public.URL
	return s, nil
}

// heedSignals lets commands get signals also where this process was started with them ignored, as by nohup or a shell's
// "&": children inherit that a signal is ignored, not that it is handled.
func heedSignals() {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
}

// Close ends the server and all its sandboxes.
func (s *Server) Close() {
	s.mu.Lock()
	all := s.boxes
	s.boxes = map[string]*box{}
	s.mu.Unlock()
	for _, b := range all {
		b.end()
	}
	s.public.CloseClientConnections()
	s.direct.CloseClientConnections()
	s.public.Close()
	s.direct.Close()
	_ = os.RemoveAll(s.folder)
}

// Fail makes something fail, before what was to fail already.
func (s *Server) Fail(f Fault) {
	if f.Times == 0 {
		f.Times = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, &f)
}

// Requests gives what the server has got: those with that method ("" is any) and a path with that prefix.
func (s *Server) Requests(method, path string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Request
	for _, r := range s.requests {
		if (method == "" || r.Method == method) && strings.HasPrefix(r.Path, path) {
			all = append(all, r)
		}
	}
	return all
}

// Changed is closed with the next request.
func (s *Server) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Sandboxes lists those there are, oldest first.
func (s *Server) Sandboxes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.order)
}

// SetStatus makes a sandbox say something else of itself than that it runs.
func (s *Server) SetStatus(id, state, reason, message string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[id]; b != nil {
		b.state, b.reason, b.message = state, reason, message
	}
}

// SetEvents makes the diagnostics route tell something else of a sandbox than that it has exited.
func (s *Server) SetEvents(id, events string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[id]; b != nil {
		b.events = events
	}
}

// Restarts is how many processes of ended sessions of a sandbox a real daemon would have started again.
func (s *Server) Restarts(id string) int {
	s.mu.Lock()
	b := s.boxes[id]
	s.mu.Unlock()
	if b == nil {
		return 0
	}
	b.daemon.mu.Lock()
	defer b.daemon.mu.Unlock()
	return b.daemon.restarts
}

// Expiry is when a sandbox ends by itself.
func (s *Server) Expiry(id string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b := s.boxes[id]; b != nil {
		return b.expires
	}
	return time.Time{}
}

// fault takes the failure that is meant for a request, after noting the request.
func (s *Server) fault(r Request) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	close(s.changed)
	s.changed = make(chan struct{})
	for _, f := range s.faults {
		if f.Times <= 0 || f.Method != "" && f.Method != r.Method || !strings.HasPrefix(r.Path, f.Path) {
			continue
		}
		if f.After > 0 {
			f.After--
			return nil
		}
		f.Times--
		return f
	}
	return nil
}

// serve answers a request, or fails it.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, note Request, h http.Handler) {
	note.Method, note.Query, note.Header = r.Method, r.URL.RawQuery, r.Header.Clone()
	if !strings.HasPrefix(note.Path, "/files/upload") && !strings.HasPrefix(note.Path, "/pty/") {
		p, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		note.Body = string(p)
		r.Body = io.NopCloser(strings.NewReader(note.Body))
	}
	f := s.fault(note)
	if f == nil {
		h.ServeHTTP(w, r)
		return
	}
	if f.Delay > 0 {
		select {
		case <-time.After(f.Delay):
		case <-r.Context().Done():
			return
		}
	}
	switch {
	case f.Drop && f.Serve:
		h.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	case f.Drop:
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		for k, v := range f.Header {
			w.Header().Set(k, v)
		}
		w.WriteHeader(f.Status)
		_, _ = io.WriteString(w, f.Body)
	case f.Serve:
		c := &cutter{ResponseWriter: w, left: f.Cut}
		h.ServeHTTP(c, r)
		if f.Rude {
			panic(http.ErrAbortHandler)
		}
	default:
		h.ServeHTTP(w, r)
	}
}

// cutter lets only the beginning of an answer through.
type cutter struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (c *cutter) Write(p []byte) (int, error) {
	n := min(len(p), c.left)
	c.left -= n
	if n > 0 {
		if _, err := c.ResponseWriter.Write(p[:n]); err != nil {
			return 0, err
		}
		c.Flush()
	}
	return len(p), nil
}

// WriteHeader drops a length that would not hold.
func (c *cutter) WriteHeader(status int) {
	c.Header().Del("Content-Length")
	c.ResponseWriter.WriteHeader(status)
}

// Flush implements http.Flusher.
func (c *cutter) Flush() {
	if f, ok := c.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// serveDirect is the way to a daemon without the server: /box/<id>/...
func (s *Server) serveDirect(w http.ResponseWriter, r *http.Request) {
	id, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/box/"), "/")
	s.toDaemon(w, r, id, "/"+path, true)
}

// toDaemon hands a request on to a sandbox's daemon.
func (s *Server) toDaemon(w http.ResponseWriter, r *http.Request, id, path string, direct bool) {
	s.mu.Lock()
	b := s.boxes[id]
	dead := b != nil && b.dead()
	s.mu.Unlock()
	var h http.Handler
	switch {
	case b == nil:
		h = answer(http.StatusNotFound, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox "+id+" not found.")
	case dead:
		h = answer(http.StatusBadGateway, "BACKEND_CONNECTION_FAILED", "Could not connect to the backend sandbox: All connection attempts failed")
	default:
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = path, ""
		h = b.daemon
	}
	s.serve(w, r, Request{Path: path, Daemon: true, Direct: direct}, h)
}

func answer(status int, code, message string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fail(w, status, code, message) })
}

func fail(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, map[string]string{"code": code, "message": message})
}

func reply(w http.ResponseWriter, status int, v any) {
	p, err := json.Marshal(v)
	if err != nil {
		status, p = http.StatusInternalServerError, nil
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(p)))
	w.WriteHeader(status)
	_, _ = w.Write(p)
}

// newBox makes a sandbox.
func (s *Server) newBox(snapshot string, metadata map[string]string, env map[string]string, life time.Duration) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	id := fmt.Sprintf("00000000-0000-4000-8000-%012d", s.made)
	folder := s.folder + "/" + id
	if err := os.MkdirAll(folder+"/.home", 0o755); err != nil {
		return nil, err
	}
	for _, one := range s.saved { // the labels come along
		if of := s.boxes[one.box]; one.id == snapshot && of != nil && metadata == nil {
			metadata = of.metadata
		}
	}
	b := &box{id: id, folder: folder, snapshot: snapshot, metadata: metadata, state: "Running", reason: "CONTAINER_RUNNING", message: "Sandbox container is running.",
		events: "Event: Exited", created: time.Now()}
	if life > 0 {
		b.expires = time.Now().Add(life)
	}
	b.daemon = newDaemon(b, env)
	s.boxes[id] = b
	s.order = append(s.order, id)
	return b, nil
}

// box is one sandbox. What the server says of it is guarded by the server's lock.
type box struct {
	id, folder             string
	snapshot               string // it was made from
	image                  string // the same; one of both is ""
	entrypoint             []string
	metadata               map[string]string
	daemon                 *daemon
	state, reason, message string
	events                 string // what the diagnostics route tells
	created, expires       time.Time
}

// dead tells whether nothing runs in it. The server's lock is held.
func (b *box) dead() bool { return b.state == "Failed" || b.state == "Terminated" }

func (b *box) end() { b.daemon.close() }

// terminals are sessions as the project's own server keeps them.
func terminals(d *daemon) *ptyserver.Server {
	return ptyserver.New(starter{d}, ptyserver.NewBudget(64<<20))
}
