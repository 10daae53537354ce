package execd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxState bounds what a session carries from one run to the next.
const maxState = 8 << 20

// session is what lasts between runs: the directory and the exported
// variables. Every run is a shell of its own, which is given them and tells them at its end.
type session struct {
	id   string
	turn chan struct{} // holds one token: runs follow one another

	mu    sync.Mutex
	cwd   string // until a run has told its own
	state []byte // a script that brings variables and directory back
	child *child // of the run under way
	gone  bool
}

type sessions struct {
	mu   sync.Mutex
	byID map[string]*session
}

func (ss *sessions) find(id string) *session {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	return ss.byID[id]
}

func (s *Server) openSession(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Cwd string `json:"cwd"`
	}
	if err := decode(w, r, &body); err != nil && !errors.Is(err, io.EOF) {
		fail(w, http.StatusBadRequest, codeBadBody, "error parsing request. %v", err)
		return
	}
	cwd, err := s.makeWorkdir(body.Cwd)
	if err != nil {
		fail(w, http.StatusInternalServerError, codeRuntime, "error creating session. %v", err)
		return
	}
	one := &session{id: newUUID(), cwd: cwd, turn: make(chan struct{}, 1)}
	s.sessions.mu.Lock()
	s.sessions.byID[one.id] = one
	s.sessions.mu.Unlock()
	reply(w, http.StatusOK, map[string]string{"session_id": one.id})
}

// makeWorkdir makes the directory that a session is to begin in.
func (s *Server) makeWorkdir(cwd string) (string, error) {
	if cwd == "" {
		return "", nil
	}
	dir, err := s.expand(cwd)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// newUUID makes a random UUID.
func newUUID() string {
	b := []byte(newID())
	b[12] = '4'
	b[16] = "89ab"[b[16]&3]
	return string(bytes.Join([][]byte{b[:8], b[8:12], b[12:16], b[16:20], b[20:]}, []byte("-")))
}

func (s *Server) closeSession(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.sessions.mu.Lock()
	one := s.sessions.byID[id]
	delete(s.sessions.byID, id)
	s.sessions.mu.Unlock()
	if one == nil {
		fail(w, http.StatusNotFound, codeNoContext, "session %s not found", id)
		return
	}
	one.end()
	w.WriteHeader(http.StatusOK)
}

// end kills what the session's run has in its group.
func (one *session) end() {
	one.mu.Lock()
	one.gone = true
	ch := one.child
	one.mu.Unlock()
	if ch != nil {
		ch.signal(unix.SIGKILL)
		<-ch.done
	}
}

// RunInSessionRequest asks for a run. Its name is told when it can't be read.
type RunInSessionRequest struct {
	Command string `json:"command"`
	Cwd     string `json:"cwd"`
	Timeout int64  `json:"timeout"` // milliseconds
}

// problem says why the request can't be done, "" when it can.
func (b *RunInSessionRequest) problem() string {
	switch {
	case b.Command == "":
		return invalidField("RunInSessionRequest", "Command", "required")
	case b.Timeout < 0:
		return invalidField("RunInSessionRequest", "Timeout", "gte")
	}
	return ""
}

func (s *Server) runInSession(w http.ResponseWriter, r *http.Request) {
	var body RunInSessionRequest
	if err := decode(w, r, &body); err != nil {
		fail(w, http.StatusBadRequest, codeBadBody, "error parsing request. %v", err)
		return
	}
	if !s.valid(w, "invalid request. ", body.problem(), &body.Cwd) {
		return
	}
	one := s.sessions.find(r.PathValue("id"))
	if one == nil {
		fail(w, http.StatusInternalServerError, codeRuntime, "error running in session. context not found")
		return
	}
	select {
	case one.turn <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	out := newStream(w)
	defer out.close()
	over := make(chan struct{})
	s.running.Go(func() {
		defer close(over)
		defer func() { <-one.turn }()
		s.sessionRun(one, body, out)
	})
	go out.beat(over)
	select {
	case <-over:
	case <-r.Context().Done(): // the run goes on
	}
}

// sessionRun runs a command in a session and tells its output and its end.
func (s *Server) sessionRun(one *session, body RunInSessionRequest, out *stream) {
	began := time.Now()
	refuse := func(err error) { out.fail(codeRuntime, "error running in session. "+err.Error()) }
	script, state, err := one.script(body)
	if err != nil {
		refuse(err)
		return
	}
	defer state.Close()
	out.send(event{Type: "init", Text: one.id}, ping())
	run, err := s.startSession(one, script, state, out)
	if err != nil {
		refuse(err)
		return
	}
	defer one.setChild(nil)
	drained := make(chan struct{})
	s.running.Go(func() {
		defer close(drained)
		// Whoever holds the output belongs to the run, so that what a pipeline's last part prints is told.
		run.drain()
	})
	var timeout <-chan time.Time
	if body.Timeout > 0 {
		t := time.NewTimer(time.Duration(body.Timeout) * time.Millisecond)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-drained:
	case <-timeout:
		run.child.signal(unix.SIGKILL)
		<-run.child.done
		run.hurry()
		<-drained
		refuse(fmt.Errorf("timeout after %v", time.Duration(body.Timeout)*time.Millisecond))
		return
	case <-s.ctx.Done():
		run.hurry()
		<-drained
	}
	<-run.child.done
	one.remember(state)
	out.send(finalEvent(run.child, began))
}

// setChild tells what is to be killed when the session is closed; false when it has been.
func (one *session) setChild(ch *child) bool {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.child = ch
	return !one.gone
}

// runner is what the shell of a run executes. Descriptor 4 takes the state that
// the run leaves, 5 holds the command, which reads as if it were alone.
const runner = `exec {__ngs_state}>&4 3<&- 4>&-
%s
. /proc/self/fd/5
__ngs_code=$?
{ export -p; printf 'cd -- %%q || exit 1\n' "$PWD"; } >&"$__ngs_state" 2>/dev/null
exit "$__ngs_code"
`

// script makes the files of a run: the shell's script with the command, and the one for the state that it leaves.
func (one *session) script(body RunInSessionRequest) (files [2]*os.File, state *os.File, err error) {
	one.mu.Lock()
	before := string(one.state)
	one.mu.Unlock()
	if body.Cwd != "" {
		before += "cd -- '" + strings.ReplaceAll(body.Cwd, "'", `'\''`) + "' || exit 1\n"
	}
	if files[0], err = memory(fmt.Sprintf(runner, before)); err != nil {
		return files, nil, err
	}
	if files[1], err = memory("exec 5<&-; " + body.Command + "\n"); err == nil {
		state, err = memory("")
	}
	if err != nil {
		closeAll(files[:]...)
	}
	return files, state, err
}

// memory makes a file in memory.
func memory(content string) (*os.File, error) {
	fd, err := unix.MemfdCreate("session", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("hold a session's run: %w", err)
	}
	f := os.NewFile(uintptr(fd), "session")
	if _, err := f.WriteString(content); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("hold a session's run: %w", err)
	}
	return f, nil
}

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// remember takes over what a run left, unless it ended before it could tell.
func (one *session) remember(state *os.File) {
	st, err := state.Stat()
	if err != nil || st.Size() == 0 || st.Size() > maxState {
		return
	}
	p := make([]byte, st.Size())
	if _, err := state.ReadAt(p, 0); err != nil {
		return
	}
	last := p[bytes.LastIndexByte(p[:len(p)-1], '\n')+1:]
	if !bytes.HasPrefix(last, []byte("cd -- ")) || p[len(p)-1] != '\n' {
		return
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	one.state = p
}

// startSession forks the shell of a run.
func (s *Server) startSession(one *session, script [2]*os.File, state *os.File, out *stream) (*piped, error) {
	defer closeAll(script[:]...)
	one.mu.Lock()
	p := program{cwd: one.cwd, bash: []string{"--noprofile", "--norc", "/proc/self/fd/3"}}
	gone := one.gone
	one.mu.Unlock()
	if gone {
		return nil, errors.New("context not found")
	}
	if _, err := os.Stat(p.cwd); p.cwd != "" && err != nil {
		p.cwd = "" // its directory has been removed: the state says where it has gone, or that it can't
	}
	run, err := s.startPiped(p, 1, script[0], state, script[1])
	if err != nil {
		return nil, err
	}
	run.tell(s, out, "stdout")
	if !one.setChild(run.child) {
		run.child.signal(unix.SIGKILL)
	}
	return run, nil
}
