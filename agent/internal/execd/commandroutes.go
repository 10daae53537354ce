package execd

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/pump"
)

// holdBack is how long the beginning of a command's stream waits for company: most commands end within it, and one
// packet is all that their clients, and whoever forwards it, have to handle.
const holdBack = 20 * time.Millisecond

// cursorHeader tells up to where a log has been read.
const cursorHeader = "EXECD-COMMANDS-TAIL-CURSOR"

// RunCommandRequest asks for a command. Its name is told when it can't be read.
type RunCommandRequest struct {
	Command    string            `json:"command"`
	Argv       []string          `json:"argv"`
	Cwd        string            `json:"cwd"`
	Envs       map[string]string `json:"envs"`
	UID        *uint32           `json:"uid"`
	GID        *uint32           `json:"gid"`
	Timeout    int64             `json:"timeout"` // milliseconds
	Background bool              `json:"background"`
}

// problem says why the request can't be done, "" when it can.
func (b *RunCommandRequest) problem() string {
	switch {
	case b.Command == "" && len(b.Argv) == 0:
		return invalidField("RunCommandRequest", "Command", "required")
	case b.Command != "" && len(b.Argv) > 0:
		return "command and argv are mutually exclusive"
	case b.Timeout < 0:
		return invalidField("RunCommandRequest", "TimeoutMs", "gte")
	case b.GID != nil && b.UID == nil:
		return "uid is required when gid is provided"
	}
	return ""
}

// text is the command as it is told in its status.
func (b *RunCommandRequest) text() string {
	if b.Command != "" {
		return b.Command
	}
	return fmt.Sprintf("%q", b.Argv)
}

func (s *Server) runCommand(w http.ResponseWriter, r *http.Request) {
	var body RunCommandRequest
	if err := decode(w, r, &body); err != nil {
		fail(w, http.StatusBadRequest, codeBadBody, "error parsing request, MAYBE invalid body format. %v", err)
		return
	}
	if !s.valid(w, "invalid request, validation error ", body.problem(), &body.Cwd) {
		return
	}
	c := &command{id: newID(), text: body.text(), background: body.Background, began: time.Now()}
	p := program{command: body.Command, argv: body.Argv, cwd: body.Cwd, envs: body.Envs, uid: body.UID, gid: body.GID}
	timeout := time.Duration(body.Timeout) * time.Millisecond
	out := newStream(w)
	defer out.close()
	if c.background {
		s.background(out, c, p, timeout)
	} else {
		s.foreground(r, out, c, p, timeout)
	}
	if s.cfg.Grace > 0 {
		out.flush()
		select {
		case <-time.After(s.cfg.Grace):
		case <-r.Context().Done():
		case <-s.ctx.Done():
		}
	}
}

// foreground runs a command and tells its output and its end.
func (s *Server) foreground(r *http.Request, out *stream, c *command, p program, timeout time.Duration) {
	run, err := s.startPiped(p, 2)
	if err != nil {
		c.started(nil, err)
	} else {
		c.started(run.child, nil)
	}
	s.commands.add(c)
	out.hold(event{Type: "init", Text: c.id}, ping())
	if err != nil {
		out.hold(ended(err.Error(), err.Error()))
		return
	}
	run.tell(s, out, "stdout", "stderr")
	stop := killAfter(run.child, timeout)
	over := func(late <-chan time.Time) {
		stop()
		c.ran()
		run.finish(late, out.flush)
		out.hold(finalEvent(run.child, c.began))
	}
	beat := time.NewTimer(holdBack)
	defer beat.Stop()
	for first := true; ; first = false {
		select {
		case <-run.child.done:
			over(beat.C)
			return
		case <-beat.C:
			if first {
				out.flush()
			} else {
				out.send(ping())
			}
			beat.Reset(pingEvery)
		case <-r.Context().Done(): // the command goes on
			s.running.Go(func() {
				<-run.child.done
				over(nil)
			})
			return
		}
	}
}

// finalEvent is the last of a command's stream.
func finalEvent(ch *child, began time.Time) event {
	if code, reason := ch.outcome(); reason != "" {
		return ended(strconv.Itoa(code), reason)
	}
	return event{Type: "execution_complete", ExecutionTime: time.Since(began).Milliseconds()}
}

// killAfter kills a command's group when its time is over, unless stop is called before.
func killAfter(ch *child, timeout time.Duration) (stop func()) {
	if timeout <= 0 {
		return func() {}
	}
	t := time.AfterFunc(timeout, func() {
		if ch.alive() {
			ch.signal(unix.SIGKILL)
		}
	})
	return func() { t.Stop() }
}

// background starts a command whose output goes to a log.
func (s *Server) background(out *stream, c *command, p program, timeout time.Duration) {
	ch, err := s.startLogged(c, p)
	s.commands.add(c)
	out.send(event{Type: "init", Text: c.id}, ping())
	if err != nil {
		out.fail(codeRuntime, "error running commands failed to start commands: "+err.Error())
		return
	}
	s.running.Go(func() {
		defer killAfter(ch, timeout)()
		<-ch.done
		c.ran()
	})
	out.send(event{Type: "execution_complete", ExecutionTime: time.Since(c.began).Milliseconds()})
}

func (s *Server) startLogged(c *command, p program) (ch *child, err error) {
	defer func() { c.started(ch, err) }()
	log, err := unnamedFile()
	if err != nil {
		return nil, fmt.Errorf("make a log: %w", err)
	}
	null, err := openNull()
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	defer null.Close()
	c.log = log
	return s.fork(p, null, log, log)
}

// unnamedFile makes a file that ends with its descriptors. Its bytes are only appended to.
func unnamedFile() (*os.File, error) {
	dir := os.TempDir()
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_APPEND|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "log"), nil
	}
	// A file system that has no such files, or no folder: then one whose name is taken away, or memory.
	if f, err := os.CreateTemp(dir, ".log"); err == nil {
		_ = os.Remove(f.Name())
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFL, unix.O_APPEND); err == nil {
			return f, nil
		}
		_ = f.Close()
	}
	if fd, err = unix.MemfdCreate("log", unix.MFD_CLOEXEC); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "log"), nil
}

// openNull opens a command's standard input. An image without /dev/null gets a pipe that has ended.
func openNull() (*os.File, error) {
	// Not by os.Open, which would first find out that this can't be polled.
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		return os.NewFile(uintptr(fd), os.DevNull), nil
	}
	r, w, perr := pump.NewStdinPipe()
	if perr != nil {
		return nil, errors.Join(err, perr)
	}
	_ = w.Close()
	return os.NewFile(uintptr(r), "stdin"), nil
}

// interrupt ends a command and waits for it.
func (s *Server) interrupt(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		missing(w, "id")
		return
	}
	c := s.commands.find(id)
	if c == nil {
		fail(w, http.StatusInternalServerError, codeRuntime, "error interruptting code context. no such session")
		return
	}
	c.mu.Lock()
	ch := c.child
	c.mu.Unlock()
	if ch == nil || !ch.alive() {
		fail(w, http.StatusInternalServerError, codeRuntime, "error interruptting code context. command session %s is not running", id)
		return
	}
	ch.end(interruptGrace)
	w.WriteHeader(http.StatusOK)
}

// commandState describes a command.
type commandState struct {
	ID         string     `json:"id"`
	Content    string     `json:"content"`
	Running    bool       `json:"running"`
	ExitCode   *int       `json:"exit_code,omitempty"`
	Error      string     `json:"error,omitempty"`
	StartedAt  time.Time  `json:"started_at"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
}

func (s *Server) commandStatus(w http.ResponseWriter, id string) {
	c := s.commands.find(id)
	if c == nil {
		fail(w, http.StatusNotFound, codeBadBody, "command not found: %s", id)
		return
	}
	reply(w, http.StatusOK, c.state())
}

func (c *command) state() commandState {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := commandState{ID: c.id, Content: c.text, StartedAt: c.began.UTC()}
	if c.finished.IsZero() {
		st.Running = true
		return st
	}
	code, end := notStarted, c.finished.UTC()
	if c.failure != nil {
		st.Error = c.failure.Error()
	} else {
		code, st.Error = c.child.outcome()
	}
	st.ExitCode, st.FinishedAt = &code, &end
	return st
}

func (s *Server) commandLogs(w http.ResponseWriter, r *http.Request, id string) {
	c := s.commands.find(id)
	switch {
	case c == nil:
		fail(w, http.StatusBadRequest, codeBadBody, "command not found: %s", id)
		return
	case !c.background:
		fail(w, http.StatusBadRequest, codeBadBody, "command %s is not running in background", id)
		return
	}
	cursor, err := strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64)
	if err != nil || cursor < 0 {
		cursor = 0
	}
	var size int64
	if c.log != nil {
		st, err := c.log.Stat()
		if err != nil {
			fail(w, http.StatusInternalServerError, codeRuntime, "error reading the log of command %s: %v", id, err)
			return
		}
		size = st.Size()
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set(cursorHeader, strconv.FormatInt(max(cursor, size), 10))
	w.Header().Set("Content-Length", strconv.FormatInt(max(size-cursor, 0), 10))
	w.WriteHeader(http.StatusOK)
	if size > cursor {
		// A client that has gone needs no more.
		_, _ = io.Copy(w, io.NewSectionReader(c.log, cursor, size-cursor))
	}
}
