package execd

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"syscall"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

// openTerminal makes a session's directory and leaves the rest to the service of terminal sessions.
func (s *Server) openTerminal(w http.ResponseWriter, r *http.Request) {
	// As it came, but for the directory: the service knows more than this route does.
	body := map[string]json.RawMessage{}
	if err := decode(w, r, &body); err != nil && !errors.Is(err, io.EOF) {
		fail(w, http.StatusBadRequest, codeBadBody, "error parsing request. %v", err)
		return
	}
	var cwd string
	if raw, ok := body["cwd"]; ok {
		if err := json.Unmarshal(raw, &cwd); err != nil {
			fail(w, http.StatusBadRequest, codeBadBody, "error parsing request. %v", err)
			return
		}
	}
	dropUnknown(body)
	dir, err := s.makeWorkdir(cwd)
	if err == nil {
		body["cwd"], err = json.Marshal(dir)
	}
	var p []byte
	if err == nil {
		p, err = json.Marshal(body)
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, codeRuntime, "error creating pty session. %v", err)
		return
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(p)), int64(len(p))
	s.terminals.Handler().ServeHTTP(w, r)
}

// dropUnknown takes out what this protocol does not know and the service would
// refuse: additions count when they make sense, and are ignored as everywhere else when they do not.
func dropUnknown(body map[string]json.RawMessage) {
	var rows, cols uint16
	if json.Unmarshal(body["rows"], &rows) != nil || json.Unmarshal(body["cols"], &cols) != nil || rows == 0 || cols == 0 {
		delete(body, "rows")
		delete(body, "cols")
	}
	if env := map[string]string(nil); json.Unmarshal(body["env"], &env) != nil {
		delete(body, "env")
	}
	if user := ""; json.Unmarshal(body["user"], &user) != nil {
		delete(body, "user")
	}
}

// starter forks the processes of terminal sessions.
type starter struct{ s *Server }

// Start implements ptyserver.Starter.
func (st starter) Start(spec ptyserver.Spec, files [3]*os.File) (ptyserver.Process, error) {
	p := program{command: spec.Command, cwd: spec.Cwd, envs: spec.Env, user: spec.User, bash: []string{"--norc", "--noprofile"}, terminal: spec.Terminal}
	ch, err := st.s.fork(p, files[:]...)
	if err != nil {
		return nil, err
	}
	return &terminal{ch}, nil
}

// terminal is a session's process.
type terminal struct{ *child }

// Done implements ptyserver.Process.
func (t *terminal) Done() <-chan struct{} { return t.done }

// Code implements ptyserver.Process: death by a signal is always -1.
func (t *terminal) Code() int {
	code, _ := t.outcome()
	return code
}

// Signal implements ptyserver.Process.
func (t *terminal) Signal(sig syscall.Signal) {
	if t.alive() {
		t.signal(sig)
	}
}

// End implements ptyserver.Process: with the session go the jobs of its shell, which have groups of their own.
func (t *terminal) End() {
	tree := process.Tree{Leader: t.pid}
	tree.End(0)
	<-t.done
}
