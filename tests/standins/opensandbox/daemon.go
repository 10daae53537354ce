package opensandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

// grace is how long a daemon keeps a command's stream open behind its result.
const grace = time.Second

// daemon is what runs in every sandbox.
type daemon struct {
	box       *box
	env       []string
	mux       *http.ServeMux
	terminals *ptyserver.Server

	mu       sync.Mutex
	made     int
	commands map[string]*command
	sessions map[string]*shell
	plugged  []net.Conn // of terminals
	restarts int        // of sessions that had ended
	closed   bool       // the sandbox has ended
}

// command is one that was started.
type command struct {
	id         string
	text       string
	cmd        *exec.Cmd
	background bool
	done       chan struct{}
}

func newDaemon(b *box, env map[string]string) *daemon {
	d := &daemon{box: b, env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.folder + "/.home", "OPENSANDBOX_ID=" + b.id, boxVariable + "=" + b.folder}, commands: map[string]*command{}, sessions: map[string]*shell{}}
	for k, v := range env {
		d.env = append(d.env, k+"="+v)
	}
	d.terminals = terminals(d)
	m := http.NewServeMux()
	m.HandleFunc("GET /ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "0") })
	m.HandleFunc("POST /command", d.run)
	m.HandleFunc("DELETE /command", d.interrupt)
	m.HandleFunc("GET /command/{one}/{two}", func(w http.ResponseWriter, r *http.Request) {
		switch one, two := r.PathValue("one"), r.PathValue("two"); {
		case one == "status":
			d.status(w, two)
		case two == "logs":
			d.logs(w, r, one)
		default:
			http.NotFound(w, r)
		}
	})
	m.HandleFunc("POST /session", d.openSession)
	m.HandleFunc("POST /session/{id}/run", d.runInSession)
	m.HandleFunc("DELETE /session/{id}", d.closeSession)
	m.HandleFunc("POST /files/upload", d.upload)
	m.HandleFunc("GET /files/download", d.download)
	m.HandleFunc("GET /files/info", d.info)
	m.HandleFunc("DELETE /files", d.unlink)
	m.HandleFunc("POST /directories", d.directories)
	m.HandleFunc("DELETE /directories", d.removeDirectory)
	m.Handle("/pty", d.terminals.Handler())
	m.HandleFunc("/pty/", func(w http.ResponseWriter, r *http.Request) {
		d.noteRestart(r)
		d.terminals.Handler().ServeHTTP(&plug{w, d}, r)
	})
	d.mux = m
	return d
}

// ServeHTTP implements http.Handler.
func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.mux.ServeHTTP(w, r) }

// inside is where a path of the sandbox is on this machine. The daemon's own folder is the sandbox's. As by a real daemon,
// variables and a leading ~ are replaced.
func (d *daemon) inside(p string) string {
	p = os.Expand(p, func(name string) string {
		for _, v := range d.env {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	})
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		p = filepath.Join(d.box.folder, ".home", rest)
	}
	if rest, ok := strings.CutPrefix(p, "/opt/opensandbox/"); ok {
		return filepath.Join(d.box.folder, ".opt", rest)
	}
	if !filepath.IsAbs(p) {
		return filepath.Join(d.box.folder, p)
	}
	return p
}

type commandBody struct {
	Command    string            `json:"command"`
	Cwd        string            `json:"cwd"`
	Envs       map[string]string `json:"envs"`
	UID        *uint32           `json:"uid"`
	GID        *uint32           `json:"gid"`
	Timeout    int64             `json:"timeout"`
	Background bool              `json:"background"`
}

func (d *daemon) run(w http.ResponseWriter, r *http.Request) {
	var body commandBody
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "error parsing request. "+err.Error())
		return
	}
	if problem := body.problem(d); problem != "" {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "invalid request, validation error "+problem)
		return
	}
	c, stdout, stderr, err := d.start(body)
	if err != nil {
		e := newEmitter(w)
		e.send(map[string]any{"type": "init", "text": "none"})
		e.send(map[string]any{"type": "error", "error": map[string]any{"ename": "CommandExecError", "evalue": err.Error(), "traceback": []string{err.Error()}}})
		return
	}
	e := newEmitter(w)
	e.send(map[string]any{"type": "init", "text": c.id})
	e.send(map[string]any{"type": "ping", "text": "pong"})
	if body.Background {
		_ = stdout.Close()
		e.send(map[string]any{"type": "execution_complete", "execution_time": 0})
		hold(r.Context(), grace)
		return
	}
	d.follow(r.Context(), e, c, stdout, stderr)
	d.abortIfClosed()
	if c.running() {
		return // nobody listens any more
	}
	e.result(c)
	hold(r.Context(), grace)
}

func (b *commandBody) problem(d *daemon) string {
	switch {
	case b.Command == "":
		return "Key: 'RunCommandRequest.Command' Error:Field validation for 'Command' failed on the 'required' tag"
	case b.Timeout < 0:
		return "timeout must not be negative"
	case b.GID != nil && b.UID == nil:
		return "uid is required when gid is provided"
	}
	if b.Cwd != "" {
		if st, err := os.Stat(d.inside(b.Cwd)); err != nil {
			return "working directory does not exist: " + b.Cwd + ": stat " + b.Cwd + ": no such file or directory"
		} else if !st.IsDir() {
			return "working directory path is not a directory: " + b.Cwd
		}
	}
	return ""
}

func hold(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// start forks a command whose output goes to files.
func (d *daemon) start(body commandBody) (c *command, stdout, stderr *os.File, err error) {
	d.mu.Lock()
	d.made++
	id := fmt.Sprintf("%032d", d.made)
	d.mu.Unlock()
	cmd := exec.Command("bash", "-c", body.Command)
	cmd.Dir = d.box.folder
	if body.Cwd != "" {
		cmd.Dir = d.inside(body.Cwd)
	}
	cmd.Env = slices.Clone(d.env) // commands may start at once
	for k, v := range body.Envs {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if body.UID != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: *body.UID, Gid: *body.UID}
		if body.GID != nil {
			cmd.SysProcAttr.Credential.Gid = *body.GID
		}
	}
	if stdout, err = os.Create(d.log(id)); err != nil {
		return nil, nil, nil, err
	}
	stderr = stdout
	if !body.Background {
		if stderr, err = os.Create(d.log(id) + ".err"); err != nil {
			return nil, nil, nil, err
		}
	}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, err
	}
	c = &command{id: id, text: body.Command, cmd: cmd, background: body.Background, done: make(chan struct{})}
	d.mu.Lock()
	d.commands[id] = c
	if d.closed { // meanwhile
		c.signal(syscall.SIGKILL)
	}
	d.mu.Unlock()
	go func() {
		_ = cmd.Wait() // the state tells everything
		close(c.done)
	}()
	if body.Timeout > 0 {
		go func() {
			select {
			case <-c.done:
			case <-time.After(time.Duration(body.Timeout) * time.Millisecond):
				c.signal(syscall.SIGKILL)
			}
		}()
	}
	return c, stdout, stderr, nil
}

func (d *daemon) log(id string) string { return filepath.Join(d.box.folder, "."+id+".output") }

func (c *command) signal(sig syscall.Signal) {
	if c.cmd.Process != nil {
		_ = syscall.Kill(-c.cmd.Process.Pid, sig)
	}
}

func (c *command) running() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// outcome is the exit code as daemons tell it, and its reason.
func (c *command) outcome() (code int, reason string) {
	st := c.cmd.ProcessState
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return -1, "signal: " + ws.Signal().String()
	}
	if st.ExitCode() != 0 {
		reason = fmt.Sprintf("exit status %d", st.ExitCode())
	}
	return st.ExitCode(), reason
}

// follow tells a command's output until it has ended. The files are looked at now and then, as daemons do.
func (d *daemon) follow(ctx context.Context, e *emitter, c *command, stdout, stderr *os.File) {
	tails := []*tail{{kind: "stdout", name: stdout.Name()}, {kind: "stderr", name: stderr.Name()}}
	defer func() {
		_ = stdout.Close()
		_ = stderr.Close()
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for running := true; running && !e.gone; {
		select {
		case <-c.done:
			running = false
		case <-ctx.Done():
			return // the command goes on
		case <-tick.C:
		}
		for _, t := range tails {
			t.read(e, !running)
		}
	}
}

// tail reads a file that grows, line by line.
type tail struct {
	kind, name string
	at         int64
	rest       []byte
}

// look is how much of a file is read at once: what an endless command printed is longer than memory.
const look = 64 << 10

// read tells what is new, up to a look, or to the end when the command has ended.
func (t *tail) read(e *emitter, last bool) {
	f, err := os.Open(t.name)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	for !e.gone {
		p := make([]byte, look)
		n, err := f.ReadAt(p, t.at)
		end := err != nil
		t.tell(e, p[:n], last && end)
		if !last || end {
			return
		}
	}
}

// tell tells of the next bytes of the file; last are the last.
func (t *tail) tell(e *emitter, p []byte, last bool) {
	t.at += int64(len(p))
	t.rest = append(t.rest, p...)
	for !e.gone {
		n := bytes.IndexAny(t.rest, "\r\n")
		if n < 0 || t.rest[n] == '\r' && n == len(t.rest)-1 && !last {
			break
		}
		e.line(t.kind, t.rest[:n])
		end := n + 1
		if t.rest[n] == '\r' && end < len(t.rest) && t.rest[end] == '\n' {
			end++
		}
		t.rest = t.rest[end:]
	}
	if last && len(t.rest) > 0 {
		e.line(t.kind, t.rest)
		t.rest = nil
	}
}

// emitter writes events: JSON objects with an empty line behind each.
type emitter struct {
	w    http.ResponseWriter
	gone bool // nobody reads
}

func newEmitter(w http.ResponseWriter) *emitter {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	return &emitter{w: w}
}

func (e *emitter) send(v map[string]any) {
	v["timestamp"] = time.Now().UnixMilli()
	p, err := json.Marshal(v)
	if err != nil {
		return
	}
	if _, err := e.w.Write(append(p, '\n', '\n')); err != nil {
		e.gone = true
	}
	if f, ok := e.w.(http.Flusher); ok {
		f.Flush()
	}
}

func (e *emitter) line(kind string, text []byte) {
	s := string(text) // each byte that is no text becomes U+FFFD on the way
	if s == "" {
		s = "\n"
	}
	e.send(map[string]any{"type": kind, "text": s})
}

func (e *emitter) result(c *command) {
	code, reason := c.outcome()
	if code == 0 {
		e.send(map[string]any{"type": "execution_complete"})
		return
	}
	e.send(map[string]any{"type": "error", "error": map[string]any{"ename": "CommandExecError", "evalue": fmt.Sprint(code), "traceback": []string{reason}}})
}

func (d *daemon) command(id string) *command {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.commands[id]
}

func (d *daemon) interrupt(w http.ResponseWriter, r *http.Request) {
	c := d.command(r.URL.Query().Get("id"))
	if c == nil || !c.running() {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", "error interruptting code context. no such session")
		return
	}
	c.signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(3 * time.Second):
		c.signal(syscall.SIGKILL)
		<-c.done
	}
}

func (d *daemon) status(w http.ResponseWriter, id string) {
	c := d.command(id)
	if c == nil {
		fail(w, http.StatusNotFound, "INVALID_REQUEST_BODY", "command not found")
		return
	}
	st := map[string]any{"id": c.id, "content": c.text, "running": c.running()}
	if !c.running() {
		code, reason := c.outcome()
		st["exit_code"] = code
		if reason != "" {
			st["error"] = reason
		}
	}
	reply(w, http.StatusOK, st)
}

func (d *daemon) logs(w http.ResponseWriter, r *http.Request, id string) {
	c := d.command(id)
	if c == nil || !c.background {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "no such background command")
		return
	}
	f, err := os.Open(d.log(c.id))
	if err != nil {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
		return
	}
	defer func() { _ = f.Close() }()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
		return
	}
	var cursor int64
	if _, err := fmt.Sscan(r.URL.Query().Get("cursor"), &cursor); err != nil && !errors.Is(err, io.EOF) {
		cursor = 0
	}
	w.Header().Set("EXECD-COMMANDS-TAIL-CURSOR", fmt.Sprint(max(cursor, end)))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.Copy(w, io.NewSectionReader(f, cursor, max(end-cursor, 0)))
}

// freeze stops or continues what runs.
func (d *daemon) freeze(frozen bool) {
	sig := syscall.SIGCONT
	if frozen {
		sig = syscall.SIGSTOP
	}
	d.each(func(c *command) { c.signal(sig) })
}

func (d *daemon) each(f func(*command)) {
	d.mu.Lock()
	var all []*command
	for _, c := range d.commands {
		all = append(all, c)
	}
	d.mu.Unlock()
	for _, c := range all {
		f(c)
	}
}

// noteRestart counts an attaching to a session that has ended. A real daemon would start its process again.
func (d *daemon) noteRestart(r *http.Request) {
	path, ok := strings.CutSuffix(r.URL.Path, "/ws")
	if !ok {
		return
	}
	answer := httptest.NewRecorder()
	d.terminals.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	var info struct {
		Running bool  `json:"running"`
		Offset  int64 `json:"output_offset"`
	}
	if answer.Code == http.StatusOK && json.Unmarshal(answer.Body.Bytes(), &info) == nil && !info.Running && info.Offset > 0 {
		d.mu.Lock()
		d.restarts++
		d.mu.Unlock()
	}
}

// plug notes the connection that a terminal takes over.
type plug struct {
	http.ResponseWriter
	d *daemon
}

// Hijack implements http.Hijacker.
func (p *plug) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(p.ResponseWriter).Hijack()
	if err == nil {
		p.d.mu.Lock()
		defer p.d.mu.Unlock()
		p.d.plugged = append(p.d.plugged, conn)
	}
	return conn, rw, err
}

// unplug cuts the connections of all terminals.
func (d *daemon) unplug() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, conn := range d.plugged {
		_ = conn.Close()
	}
	d.plugged = nil
}

// abortIfClosed breaks off an answer that nobody is left to give.
func (d *daemon) abortIfClosed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		panic(http.ErrAbortHandler)
	}
}

// close ends everything.
func (d *daemon) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.each(func(c *command) {
		c.signal(syscall.SIGKILL)
		<-c.done
	})
	d.unplug() // nobody is left to tell an exit
	d.terminals.Close()
	killTagged(boxVariable + "=" + d.box.folder)
}
