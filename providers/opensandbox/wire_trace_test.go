package opensandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// unmade are requests of the other client that we do not make, and added are those that only we make, with their answers.
var (
	unmade = []struct {
		route *regexp.Regexp
		why   string
	}{
		{regexp.MustCompile(`^GET .*/endpoints/18080$`), "nothing is asked of the daemon that guards the network"},
		{regexp.MustCompile(`^POST /v1/metrics/events$`), "we report nothing of users to the server"},
		{regexp.MustCompile(`/pty`), "sessions are replayed socket by socket"},
	}
	added = []struct {
		route, body *regexp.Regexp
		status      int
		answer      string
		why         string
	}{
		{regexp.MustCompile(`^POST .*/directories$`), nil, 200, "", "a working directory that does not exist would make every command fail"},
		{regexp.MustCompile(`^POST .*/command$`), regexp.MustCompile(`memory\.events`), 200, `{"type":"init","text":"1"}` + "\n\n" + `{"type":"execution_complete"}` + "\n\n",
			"whether a command was killed for its memory is looked up"},
		{regexp.MustCompile(`^DELETE .*/command$`), nil, 502, `{"code":"BACKEND_CONNECTION_FAILED","message":"x"}`, "a command whose stream was lost is ended: nobody would read what it still prints"},
		{regexp.MustCompile(`^GET .*/files/download$`), nil, 404, `{"code":"FILE_NOT_FOUND","message":"file not found"}`, "who connects takes over the sandbox's defaults"},
		{regexp.MustCompile(`^GET (.*)/files/info$`), nil, 404, `{"code":"FILE_NOT_FOUND","message":"file not found"}`, "a download that is slow to begin is looked at"},
		{regexp.MustCompile(`^GET /v1/sandboxes/[^/]+$`), nil, 200, `{"id":"x","status":{"state":"Running"}}`, "the reason for a loss is looked for in each of two losses"},
	}
)

// trace is a server that answers as was recorded, each request once.
type trace struct {
	t    *testing.T
	all  []*exchange
	host string

	mu    sync.Mutex
	made  map[*exchange]bool
	last  int
	ended map[string]chan struct{} // sessions; closed with their end
	shown map[string]bool
}

func (s *trace) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	e := s.find(req, p)
	if e == nil {
		s.add(w, req, string(p))
		return
	}
	assert.Equal(s.t, "lab-key", req.Header.Get(headerAPIKey))
	session := ""
	if m := regexp.MustCompile(`/session/([^/]+)`).FindStringSubmatch(req.URL.Path); m != nil {
		session = m[1]
	}
	if req.Method == http.MethodDelete && session != "" {
		s.mu.Lock()
		close(s.over(session))
		s.mu.Unlock()
	}
	if e.path == "/files/download" {
		w.Header().Set("Content-Length", strconv.Itoa(len(e.body)))
	}
	w.WriteHeader(e.status)
	body := regexp.MustCompile(`127\.0\.0\.1:1809\d`).ReplaceAllString(e.body, s.host)
	if first, rest, ok := strings.Cut(body, "\n\n"); ok && strings.Contains(rest, "signal: killed") && session != "" {
		_, _ = io.WriteString(w, first+"\n\n")
		_ = http.NewResponseController(w).Flush()
		s.mu.Lock()
		over := s.over(session)
		s.mu.Unlock()
		select {
		case <-over: // that is what kills it
		case <-req.Context().Done():
			return
		}
		body = rest
	}
	_, _ = io.WriteString(w, body)
}

// over is closed with a session's end. mu is held.
func (s *trace) over(session string) chan struct{} {
	if s.ended[session] == nil {
		s.ended[session] = make(chan struct{})
	}
	return s.ended[session]
}

// find gives the recorded request that this is.
func (s *trace) find(req *http.Request, body []byte) *exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, e := range s.all {
		if s.made[e] || e.Method != req.Method || e.target() != req.URL.Path {
			continue
		}
		want, err := url.ParseQuery(e.query)
		require.NoError(s.t, err)
		got := req.URL.Query()
		if strings.HasSuffix(e.path, "/logs") {
			got.Del("cursor")
		}
		if !reflect.DeepEqual(want, got) || strings.HasSuffix(e.path, "/command") && !sameJSON(string(body), e.request) {
			continue
		}
		s.made[e] = true
		// A session's end and what it interrupts cross, and the reason for a loss is looked for while others happen.
		if !strings.Contains(e.path, "/session/") && route(e) != "GET /v1/sandboxes/"+e.box {
			assert.Greater(s.t, n, s.last, "%s %s comes later than was recorded", e.Method, e.path)
			s.last = n
		}
		return e
	}
	return nil
}

func (s *trace) add(w http.ResponseWriter, req *http.Request, body string) {
	route := req.Method + " " + req.URL.Path
	for _, a := range added {
		if a.route.MatchString(route) && (a.body == nil || a.body.MatchString(body)) {
			s.mu.Lock()
			s.shown[a.why] = true
			s.mu.Unlock()
			w.WriteHeader(a.status)
			_, _ = io.WriteString(w, a.answer)
			return
		}
	}
	s.t.Errorf("a request that nobody recorded: %s %s", route, body)
	http.Error(w, "not recorded", http.StatusTeapot)
}

func route(e *exchange) string { return e.Method + " " + e.path }

// target is the whole path of a request to the server.
func (e *exchange) target() string {
	if !e.daemon {
		return e.path
	}
	return "/v1/sandboxes/" + e.box + "/proxy/44772" + e.path
}

func sameJSON(a, b string) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil {
		return false
	}
	normal(x)
	normal(y)
	return reflect.DeepEqual(x, y)
}

// A whole run of the other client is made again, operation by operation: what goes over the wire is the same, in the
// same order, but for what the tables declare.
func TestRecordedRunsAreMadeAgain(t *testing.T) {
	ledger := readWire(t)
	shown := map[string]bool{}
	for _, file := range []string{"peer_trace", "peer_trace_bg"} {
		t.Run(file, func(t *testing.T) {
			s := &trace{t: t, made: map[*exchange]bool{}, last: -1, ended: map[string]chan struct{}{}, shown: shown}
			for _, e := range ledger.exchanges(t) {
				if e.File == file {
					s.all = append(s.all, e)
				}
			}
			h := httptest.NewServer(s)
			t.Cleanup(h.Close)
			s.host = strings.TrimPrefix(h.URL, "http://")
			raw, err := json.Marshal(map[string]any{
				"connection":  map[string]any{"domain": h.URL, "api_key": "lab-key", "use_server_proxy": true},
				"attribution": map[string]any{"enabled": false}, "create": map[string]any{"connect_poll_s": 0.01},
				"operations": map[string]any{"background_exec": file == "peer_trace_bg"},
			})
			require.NoError(t, err)
			p, err := newProvider(raw)
			require.NoError(t, err)
			run := &run{trace: s, t: t, p: p}
			for n, e := range s.all {
				run.step(n, e)
				if t.Failed() {
					t.Fatalf("failed at %s: %s %s", e.key(), e.Method, e.target())
				}
			}
			require.NoError(t, p.Close(context.Background()))
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, e := range s.all {
				if !s.made[e] && !notMade(e) {
					t.Errorf("not made: %s %s", e.Method, e.target())
				}
			}
		})
	}
	for _, a := range added {
		if !a.route.MatchString("GET /files/info") { // that one depends on the machine
			assert.True(t, shown[a.why], a.why)
		}
	}
}

func notMade(e *exchange) bool {
	for _, u := range unmade {
		if u.route.MatchString(e.Method + " " + e.target()) {
			return true
		}
	}
	return false
}

// run makes the operations of a run.
type run struct {
	*trace
	t *testing.T
	p *Provider
	i *instance
}

// step makes the operation that begins with a recorded request, unless an earlier operation has made that.
func (r *run) step(n int, e *exchange) {
	r.mu.Lock()
	made := r.made[e]
	r.mu.Unlock()
	if made || notMade(e) {
		return
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), wireSoon)
	defer cancel()
	route := e.Method + " " + e.path
	switch {
	case route == "POST /v1/sandboxes":
		r.create(ctx, e)
	case route == "POST /command":
		r.exec(ctx, n, e)
	case route == "POST /session":
		r.services(ctx, n)
	case route == "POST /files/upload":
		name, content := uploaded(r.t, e)
		local := filepath.Join(r.t.TempDir(), "f")
		require.NoError(r.t, os.WriteFile(local, []byte(content), 0o755))
		require.NoError(r.t, r.i.Upload(ctx, local, name))
	case route == "GET /files/download":
		q, err := url.ParseQuery(e.query)
		require.NoError(r.t, err)
		local := filepath.Join(r.t.TempDir(), "f")
		err = r.i.Download(ctx, q.Get("path"), local)
		if e.status == http.StatusNotFound {
			assert.Equal(r.t, core.KindNotFound, core.KindOf(err), "%v", err)
			return
		}
		require.NoError(r.t, err)
		got, err := os.ReadFile(local)
		require.NoError(r.t, err)
		assert.True(r.t, e.body == string(got), "the file's bytes")
	case strings.HasSuffix(e.path, "/endpoints/"+strconv.Itoa(daemonPort)):
		in, _, err := r.p.Connect(ctx, map[string]any{descriptorID: e.box})
		require.NoError(r.t, err)
		r.i.Detach()
		r.i = in.(*instance)
	case strings.Contains(e.path, "/endpoints/"):
		port, err := strconv.Atoi(e.path[strings.LastIndex(e.path, "/")+1:])
		require.NoError(r.t, err)
		at, err := r.i.Endpoint(ctx, port)
		require.NoError(r.t, err)
		assert.Equal(r.t, fmt.Sprintf("http://%s/v1/sandboxes/%s/proxy/%d", r.host, e.box, port), at.URL)
	case strings.HasSuffix(e.path, "/pause"):
		require.NoError(r.t, r.i.Pause(ctx))
	case strings.HasSuffix(e.path, "/resume"):
		require.NoError(r.t, r.i.Resume(ctx))
	case e.Method == http.MethodDelete:
		require.NoError(r.t, r.i.Destroy(ctx))
	case e.Method == http.MethodGet && !e.daemon:
		got, err := r.i.Status(ctx)
		require.NoError(r.t, err)
		assert.Contains(r.t, strings.ToLower(e.body), `"state":"`+strings.ToLower(string(got)))
	default:
		r.t.Errorf("no operation begins with %s", route)
	}
}

func (r *run) create(ctx context.Context, e *exchange) {
	var b struct {
		Image         struct{ URI string }
		Timeout       float64
		Env, Metadata map[string]string
	}
	require.NoError(r.t, json.Unmarshal([]byte(e.request), &b))
	spec := core.Spec{Image: b.Image.URI, TTL: seconds(b.Timeout), Env: b.Env, Metadata: b.Metadata, Workdir: "/tmp", Resources: core.Resources{CPU: 1, MemoryMiB: 512}}
	for _, f := range r.all {
		if f.path == "/files/upload" {
			name, content := uploaded(r.t, f)
			spec.Files = append(spec.Files, core.File{Path: name, Content: content})
			break
		}
	}
	in, err := r.p.Create(ctx, spec)
	require.NoError(r.t, err)
	r.i = in.(*instance)
	assert.Contains(r.t, e.body, `"id":"`+r.i.ID()+`"`)
}

// exec runs a command. Those that find no daemon are sent several times, and have their result then.
func (r *run) exec(ctx context.Context, n int, e *exchange) {
	out := core.NewCollector(0)
	defer out.Close()
	res, err := r.i.Exec(ctx, commandOf(r.t, e.request), out)
	if e.status == http.StatusOK && strings.Contains(e.request, `"background":true`) {
		require.NoError(r.t, err)
		var st commandStatus
		require.NoError(r.t, json.Unmarshal([]byte(r.all[n+1].body), &st))
		assert.Equal(r.t, *st.ExitCode, res.ExitCode)
		assert.Equal(r.t, r.all[n+2].body, out.Output(core.Stdout).String())
		assert.Equal(r.t, st.Error, out.Output(core.Stderr).String())
		return
	}
	(&wireReplay{t: r.t, e: e}).ran(res, err, out)
	if e.status == http.StatusBadGateway {
		assert.Contains(r.t, res.Reason, "unreachable")
	}
}

// commandOf is the request that leads to a recorded one.
func commandOf(t *testing.T, request string) core.ExecRequest {
	t.Helper()
	return recordedRequest{Body: json.RawMessage(request)}.asked(t)
}

// services runs a command whose services live on; one that was ended early has its time limit here.
func (r *run) services(ctx context.Context, n int) {
	at := slices.IndexFunc(r.all[n:], func(e *exchange) bool { return strings.HasSuffix(e.path, "/run") })
	require.Positive(r.t, at)
	e := r.all[n+at]
	req := commandOf(r.t, e.request)
	command, ok := strings.CutPrefix(req.Command, "bash -c '")
	require.True(r.t, ok)
	killed := strings.Contains(e.body, "signal: killed")
	req.Command, req.Cwd, req.Timeout, req.KeepBackground = strings.TrimSuffix(command, "'"), "/tmp", 0, true
	if killed {
		req.Timeout = 100 * time.Millisecond
	}
	out := core.NewCollector(0)
	defer out.Close()
	res, err := r.i.Exec(ctx, req, out)
	if killed {
		require.NoError(r.t, err)
		assert.Equal(r.t, serviceTimeout, res.ExitCode)
		assert.Equal(r.t, core.ErrorTypeTimeout, res.ErrorType)
		return
	}
	(&wireReplay{t: r.t, e: e}).ran(res, err, out)
}

// uploaded is the file of a recorded request, as far as it was kept.
func uploaded(t *testing.T, e *exchange) (name, content string) {
	t.Helper()
	parts, _ := readForm(e.request, strings.SplitN(strings.TrimPrefix(e.request, "--"), "\r\n", 2)[0])
	require.GreaterOrEqual(t, len(parts), 2)
	name, _ = parts[0].meta.(map[string]any)["path"].(string)
	return name, parts[1].content
}
