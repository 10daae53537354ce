package opensandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

// shell is a session: what of it lasts between commands is its directory, and what is exported.
type shell struct {
	cwd string
	now *command
}

func (d *daemon) openSession(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Cwd string `json:"cwd"`
	}
	if r.ContentLength != 0 {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			fail(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "error parsing request. "+err.Error())
			return
		}
	}
	if body.Cwd != "" {
		if err := os.MkdirAll(d.inside(body.Cwd), 0o755); err != nil {
			fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", "error creating session. "+err.Error())
			return
		}
	}
	d.mu.Lock()
	d.made++
	id := fmt.Sprintf("00000000-0000-4000-9000-%012d", d.made)
	d.sessions[id] = &shell{cwd: body.Cwd}
	d.mu.Unlock()
	reply(w, http.StatusOK, map[string]string{"session_id": id})
}

func (d *daemon) runInSession(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	var body commandBody
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "error parsing request. "+err.Error())
		return
	}
	d.mu.Lock()
	s := d.sessions[id]
	d.mu.Unlock()
	if s == nil {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", "error running in session. context not found")
		return
	}
	kept := "'" + d.log("session-"+id) + "'"
	back := "[ -e " + kept + " ] && . " + kept + "; "
	if body.Cwd == "" {
		body.Cwd = s.cwd
	} else {
		back += "cd " + strconv.Quote(d.inside(body.Cwd)) + "; "
	}
	// Exported variables and the directory last until the next command, as bash itself writes them.
	keep := "trap '{ export -p; printf \"cd %q\\n\" \"$PWD\"; } >\"'" + kept + "'\"' EXIT; "
	body.Command = back + keep + "exec 2>&1\n" + body.Command
	c, stdout, stderr, err := d.start(body)
	e := newEmitter(w)
	e.send(map[string]any{"type": "init", "text": id})
	if err != nil {
		e.send(map[string]any{"code": "RUNTIME_ERROR", "message": "error running in session. " + err.Error()})
		return
	}
	d.mu.Lock()
	s.now = c
	d.mu.Unlock()
	d.follow(r.Context(), e, c, stdout, stderr)
	d.abortIfClosed()
	if c.running() {
		return // nobody listens any more
	}
	e.result(c)
}

func (d *daemon) closeSession(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	d.mu.Lock()
	s := d.sessions[id]
	delete(d.sessions, id)
	d.mu.Unlock()
	if s == nil {
		fail(w, http.StatusNotFound, "CONTEXT_NOT_FOUND", "session "+id+" not found")
		return
	}
	if s.now != nil && s.now.running() {
		s.now.signal(syscall.SIGKILL)
		<-s.now.done
	}
}

// starter forks what runs in terminal sessions.
type starter struct{ d *daemon }

// Start implements ptyserver.Starter.
func (s starter) Start(spec ptyserver.Spec, files [3]*os.File) (ptyserver.Process, error) {
	args := []string{"--norc", "--noprofile"}
	if spec.Command != "" {
		args = append(args, "-c", spec.Command)
	}
	cmd := exec.Command("bash", args...)
	cmd.Dir = s.d.box.folder
	if spec.Cwd != "" {
		cmd.Dir = s.d.inside(spec.Cwd)
		if err := os.MkdirAll(cmd.Dir, 0o755); err != nil {
			return nil, err
		}
	}
	s.d.mu.Lock()
	s.d.made++
	tag := fmt.Sprintf("STANDIN_SESSION=%s/%d", s.d.box.folder, s.d.made)
	s.d.mu.Unlock()
	cmd.Env = append(slices.Clone(s.d.env), tag)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: spec.Terminal}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, tag: tag, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // the state tells everything
	}()
	return p, nil
}

type process struct {
	cmd  *exec.Cmd
	tag  string
	done chan struct{}
}

// Done implements ptyserver.Process.
func (p *process) Done() <-chan struct{} { return p.done }

// Code implements ptyserver.Process: death by a signal is always -1.
func (p *process) Code() int { return p.cmd.ProcessState.ExitCode() }

// Signal implements ptyserver.Process.
func (p *process) Signal(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }

// End implements ptyserver.Process.
func (p *process) End() {
	p.Signal(syscall.SIGKILL)
	<-p.done
	killTagged(p.tag)
}
