package opensandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func (r *wireReplay) performOnDaemon(ctx context.Context, route string) {
	t, e := r.t, r.e
	switch {
	case route == "GET /ping":
		r.outcome(r.i.ping(ctx))
	case route == "POST /command":
		r.command(ctx)
	case strings.HasPrefix(route, "GET /command/status/"):
		st, err := r.i.commandStatus(ctx, strings.TrimPrefix(e.path, "/command/status/"))
		if r.outcome(err) {
			var want commandStatus
			require.NoError(t, json.Unmarshal([]byte(e.body), &want))
			require.NotNil(t, want.Running)
			assert.Equal(t, want, st)
		}
	case strings.HasSuffix(route, "/logs"):
		r.log(ctx)
	case route == "DELETE /command":
		q, err := url.ParseQuery(e.query)
		require.NoError(t, err)
		require.NoError(t, r.i.interrupt(ctx, q.Get("id"))) // also when it has ended
	case route == "POST /session":
		var body struct{ Cwd string }
		_ = json.Unmarshal([]byte(e.request), &body) // it may be missing
		id, err := r.i.openSession(ctx, body.Cwd)
		if r.outcome(err) {
			assert.Contains(t, e.body, id)
			assert.NotEmpty(t, id)
		}
	case strings.HasPrefix(route, "POST /session/"):
		r.sessionRun(ctx)
	case strings.HasPrefix(route, "DELETE /session/"):
		require.NoError(t, r.i.closeSession(ctx, strings.TrimPrefix(e.path, "/session/"))) // also when it is gone
	case route == "POST /files/upload":
		r.upload(ctx)
	case route == "GET /files/download":
		r.download(ctx)
	case route == "GET /files/info":
		r.fileInfo(ctx)
	case route == "DELETE /files":
		r.outcome(r.i.unlink(ctx, r.queried("path")))
	case route == "POST /directories":
		for name := range r.object() {
			r.outcome(r.i.makeFolder(ctx, name))
		}
	case strings.HasPrefix(e.path, "/pty"):
		r.terminal(ctx)
	default:
		t.Errorf("no operation for %s", route)
	}
}

func (r *wireReplay) queried(name string) string {
	q, err := url.ParseQuery(r.e.query)
	require.NoError(r.t, err)
	return q.Get(name)
}

func (r *wireReplay) object() map[string]any {
	var m map[string]any
	require.NoError(r.t, json.Unmarshal([]byte(r.e.request), &m))
	return m
}

// told is what a recorded stream says, read in another way than the provider's.
type told struct {
	name           string
	stdout, stderr string
	code           int
	ended          bool // it says how the command ended
	failed         bool // an error was raised after it had begun
}

func readStream(body string) told {
	var s told
	lines := map[string][]string{}
	for d := json.NewDecoder(strings.NewReader(body)); ; {
		var e struct {
			Type, Text string
			Error      struct {
				EName, EValue string
				Traceback     []string
			}
		}
		if d.Decode(&e) != nil {
			break
		}
		switch e.Type {
		case "":
			s.failed = true
		case "init":
			s.name = e.Text
		case "stdout", "stderr":
			lines[e.Type] = append(lines[e.Type], strings.TrimSuffix(e.Text, "\n"))
		case "execution_complete":
			s.ended = true
		case "error":
			lines["stderr"] = append(lines["stderr"], e.Error.EName+": "+e.Error.EValue)
			n, err := strconv.Atoi(e.Error.EValue)
			s.code, s.ended = n, err == nil
			if n < 0 {
				s.code = map[string]int{"signal: killed": 137, "signal: terminated": 143}[strings.Join(e.Error.Traceback, "")]
			}
		}
	}
	s.stdout, s.stderr = strings.Join(lines["stdout"], "\n"), strings.Join(lines["stderr"], "\n")
	return s
}

// command runs a command as one that is waited for, or one in the background.
func (r *wireReplay) command(ctx context.Context) {
	e := r.e
	var body struct {
		Command    string
		Argv       []string
		Cwd        string
		Timeout    json.RawMessage
		UID, GID   *int
		Envs       map[string]string
		Background bool
	}
	_ = json.Unmarshal([]byte(e.request), &body) // some are wrong on purpose
	req := core.ExecRequest{Command: body.Command, Argv: body.Argv, Cwd: body.Cwd, Env: body.Envs, Timeout: core.Forever}
	if ms, err := strconv.Atoi(string(body.Timeout)); err == nil && ms > 0 {
		req.Timeout = time.Duration(ms) * time.Millisecond
	}
	switch {
	case body.UID != nil && body.GID != nil:
		req.User = fmt.Sprintf("%d:%d", *body.UID, *body.GID)
	case body.UID != nil:
		req.User = strconv.Itoa(*body.UID)
	case strings.HasPrefix(body.Command, "su -s /bin/sh -c 'id -un; pwd; echo $HOME' agent"):
		req.Command, req.User = "id -un; pwd; echo $HOME", "agent"
	}
	if req.Command == "" && len(req.Argv) == 0 {
		req.Command = "x" // an empty one is not sent
	}
	if body.Background {
		r.launch(ctx, req)
		return
	}
	out := core.NewCollector(0)
	defer out.Close()
	res, err := r.i.Exec(ctx, req, out)
	r.ran(res, err, out)
}

// ran checks a command's result.
func (r *wireReplay) ran(res core.ExecResult, err error, out *core.Collector) {
	t, e := r.t, r.e
	t.Helper()
	want := readStream(e.body)
	switch {
	case e.status == http.StatusBadRequest:
		assert.Equal(t, core.KindInvalid, core.KindOf(err), "%v", err)
		r.refused(err)
		return
	case e.status != http.StatusOK || !want.ended:
		require.NoError(t, err)
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType, "never a success: %+v", res)
		assert.Equal(t, core.NoExitCode, res.ExitCode)
		assert.NotEmpty(t, res.Reason)
		return
	}
	require.NoError(t, err)
	assert.Empty(t, res.ErrorType, res.Reason)
	assert.Equal(t, want.code, res.ExitCode)
	assert.Equal(t, want.stdout, out.Output(core.Stdout).String())
	assert.Equal(t, want.stderr, out.Output(core.Stderr).String())
}

func (r *wireReplay) launch(ctx context.Context, req core.ExecRequest) {
	t, e := r.t, r.e
	who, err := readAccount("exec", req.User)
	require.NoError(t, err)
	body := &commandBody{Command: req.Command, Cwd: req.Cwd, Envs: req.Env, UID: who.uid, GID: who.gid, Background: true}
	if req.Timeout > 0 {
		body.Timeout = req.Timeout.Milliseconds()
	}
	name, res, err := r.i.launch(ctx, body, req.Timeout)
	want := readStream(e.body)
	switch {
	case e.status == http.StatusBadRequest:
		assert.Equal(t, core.KindInvalid, core.KindOf(err), "%v", err)
		r.refused(err)
	case want.failed:
		require.NoError(t, err)
		assert.Empty(t, name)
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
	default:
		require.NoError(t, err)
		assert.Equal(t, want.name, name)
	}
}

// log reads the output of a command in the background. Where a later part was recorded, the reading has been cut before it.
func (r *wireReplay) log(ctx context.Context) {
	t, e := r.t, r.e
	cursor, _ := strconv.Atoi(r.queried("cursor")) // none is the beginning
	before := strings.Repeat("x", cursor)
	if cursor > 0 {
		cut := false
		r.also = func(w http.ResponseWriter, _ *http.Request) bool {
			if cut {
				return false
			}
			cut = true
			w.Header().Set("Content-Length", strconv.Itoa(cursor+100))
			_, _ = io.WriteString(w, before)
			return true
		}
	}
	out := core.NewCollector(0)
	defer out.Close()
	err := r.i.readLog(ctx, strings.TrimSuffix(strings.TrimPrefix(e.path, "/command/"), "/logs"), out)
	if r.outcome(err) {
		assert.Equal(t, before+e.body, out.Output(core.Stdout).String())
	}
}

// sessionRun runs a command whose services live on.
func (r *wireReplay) sessionRun(ctx context.Context) {
	t, e := r.t, r.e
	session, _, _ := strings.Cut(strings.TrimPrefix(e.path, "/session/"), "/")
	deleted := 0
	r.also = func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, "/session"):
			_, _ = io.WriteString(w, `{"session_id":"`+session+`"}`)
		case req.Method == http.MethodDelete:
			r.mu.Lock()
			deleted++
			r.mu.Unlock()
		default:
			return false
		}
		return true
	}
	var body struct{ Command, Cwd string }
	require.NoError(t, json.Unmarshal([]byte(e.request), &body))
	command := body.Command
	if inner, ok := strings.CutPrefix(command, "bash -c '"); ok {
		command = strings.TrimSuffix(inner, "'")
	}
	if command == "" {
		command = "x" // an empty one is not sent
	}
	out := core.NewCollector(0)
	defer out.Close()
	res, err := r.i.Exec(ctx, core.ExecRequest{Command: command, Cwd: body.Cwd, Timeout: core.Forever, KeepBackground: true}, out)
	r.ran(res, err, out)
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.Equal(t, 1, deleted, "a session is ended once")
	var sent struct{ Command string }
	require.NoError(t, json.Unmarshal([]byte(r.body), &sent))
	assert.Equal(t, "bash -c "+quote(command), sent.Command)
}
