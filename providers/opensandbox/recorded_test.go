package opensandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded reads what was recorded from a real server and its daemon, one JSON object to a line.
func recorded[T any](t *testing.T, name string) []T {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var all []T
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one T
		require.NoError(t, json.Unmarshal(lines.Bytes(), &one))
		all = append(all, one)
	}
	require.NoError(t, lines.Err())
	require.NotEmpty(t, all)
	return all
}

type recordedCreate struct {
	Case        string          `json:"case"`
	Spec        map[string]any  `json:"spec"`
	Create      json.RawMessage `json:"create"`
	Attribution json.RawMessage `json:"attribution"`
	Environ     map[string]string
	Requests    []struct {
		Body json.RawMessage `json:"body"`
	} `json:"requests"`
	Error  string           `json:"error"`
	Result []map[string]any `json:"result"`
}

// body is the request that was made, nil for none.
func (r recordedCreate) body() json.RawMessage {
	if len(r.Requests) == 0 {
		return nil
	}
	return r.Requests[0].Body
}

// spec reads a recorded spec as the language binding would: values that should be text are text.
func (r recordedCreate) spec() core.Spec {
	texts := func(key string) map[string]string {
		given, ok := r.Spec[key].(map[string]any)
		if !ok {
			return nil
		}
		m := map[string]string{}
		for k, v := range given {
			m[k] = plainText(v)
		}
		return m
	}
	s := core.Spec{Env: texts("env"), Metadata: texts("metadata")}
	s.Image, _ = r.Spec["image"].(string)
	if ttl, ok := r.Spec["ttl_s"].(float64); ok {
		s.TTL = seconds(ttl)
	}
	if res, ok := r.Spec["resources"].(map[string]any); ok {
		number := func(key string) int { n, _ := res[key].(float64); return int(n) }
		s.Resources = core.Resources{MemoryMiB: number("memory_mib"), DiskGiB: number("disk_gib"), GPU: number("gpu")}
		s.Resources.CPU, _ = res["cpu"].(float64)
		s.Resources.GPUType, _ = res["gpu_type"].(string)
	}
	if argv, ok := r.Spec["entrypoint"].([]any); ok {
		for _, a := range argv {
			s.Entrypoint = append(s.Entrypoint, a.(string))
		}
	}
	s.ProviderOptions, _ = r.Spec["provider_options"].(map[string]any)
	return s
}

func replayCreates(t *testing.T, ledger *wireLedger) {
	for _, name := range []string{"NEMO_GYM_TEAM", "NEMO_GYM_USER", "NEMO_GYM_WORKLOAD", "SLURM_JOB_ACCOUNT", "SLURM_JOB_USER", "SLURM_JOB_NAME", "NEMO_GYM_CONFIG_PATH"} {
		t.Setenv(name, "")
	}
	t.Setenv("NEMO_GYM_RUN_ID", "run-fixed")
	for n, r := range recorded[recordedCreate](t, "wire/create_bodies.jsonl") {
		wanted := r.body()
		if r.Case == "ttl_zero" {
			// A time to live of zero is none here: servers refuse it.
			wanted = json.RawMessage(strings.Replace(string(wanted), `"timeout": 0`, `"timeout": 600`, 1))
			require.NotEqual(t, r.body(), wanted)
		}
		if r.Result != nil {
			// The folder that sandboxes share is a volume, whose name the language binding makes.
			for _, o := range r.Result {
				read, err := readOptions(o)
				require.NoError(t, err)
				body, err := newCreateBody(&config{}, core.Spec{Image: "img:1"}, read)
				require.NoError(t, err)
				assert.Equal(t, o["volumes"], anySlice(body.Volumes))
			}
			ledger.use("create", ledger.lines["create_bodies"][n])
			continue
		}
		ok := t.Run(r.Case, func(t *testing.T) {
			for k, v := range r.Environ {
				t.Setenv(k, v)
			}
			blocks := map[string]json.RawMessage{"attribution": json.RawMessage(`{"enabled": false}`)}
			if r.Attribution != nil {
				blocks["attribution"] = r.Attribution
			}
			if r.Create != nil {
				blocks["create"] = r.Create
			}
			raw, err := json.Marshal(blocks)
			require.NoError(t, err)
			p, err := newProvider(raw)
			require.NoError(t, err)
			defer func() { require.NoError(t, p.Close(context.Background())) }()
			spec := r.spec()
			if wanted == nil {
				_, err := p.Create(context.Background(), spec)
				require.Error(t, err, "recorded: %s", r.Error)
				assert.Equal(t, core.KindInvalid, core.KindOf(err), "%v", err)
				return
			}
			o, err := readOptions(spec.ProviderOptions)
			require.NoError(t, err)
			body, err := newCreateBody(&p.cfg, spec, o)
			require.NoError(t, err)
			// Whoever runs this is not the one of the recording.
			if u := login(); u != "" && !strings.Contains(string(wanted), "/user") {
				delete(body.Metadata, p.cfg.Attribution.KeyPrefix+"user")
			}
			sent, err := json.Marshal(body)
			require.NoError(t, err)
			assert.JSONEq(t, string(wanted), string(sent))
		})
		if ok {
			ledger.use("create", ledger.lines["create_bodies"][n])
		}
	}
}

func anySlice(volumes []map[string]any) any {
	var all []any
	for _, v := range volumes {
		all = append(all, v)
	}
	return all
}

func TestEveryRecordedFailureIsRead(t *testing.T) {
	type failure struct {
		Status int    `json:"status"`
		Body   string `json:"body"`
	}
	for _, f := range recorded[failure](t, "failures.jsonl") {
		e := newAPIError(&http.Response{StatusCode: f.Status}, []byte(f.Body))
		var body struct{ Code, Message string }
		if json.Unmarshal([]byte(f.Body), &body) == nil && body.Code != "" {
			assert.Equal(t, body.Code, e.code)
			assert.Equal(t, clip(body.Message, 500), e.message)
		}
		if f.Body != "" {
			assert.NotEmpty(t, e.message, f.Body)
		}
		assert.Equal(t, f.Status, e.status)
		assert.Equal(t, strings.Contains(f.Body, "SANDBOX_NOT_FOUND"), sandboxGone(e) && e.code != "" && strings.Contains(e.code, "SANDBOX"), f.Body)
	}
}

// replayer is a server that answers commands with what was recorded.
type replayer struct {
	*httptest.Server
	mu       sync.Mutex
	answer   func(w http.ResponseWriter, path string)
	requests []replayed
}

type replayed struct {
	method, path string
	body         string
}

func newReplayer(t *testing.T) *replayer {
	r := &replayer{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		p, _ := io.ReadAll(req.Body)
		path := req.URL.Path
		if _, rest, ok := strings.Cut(path, "/proxy/44772"); ok {
			path = rest
		}
		r.mu.Lock()
		r.requests = append(r.requests, replayed{req.Method, path, string(p)})
		answer := r.answer
		r.mu.Unlock()
		switch {
		case strings.Contains(path, "/endpoints/"):
			_, _ = fmt.Fprintf(w, `{"endpoint":"%s/v1/sandboxes/box/proxy/44772"}`, req.Host)
		case strings.HasPrefix(path, "/v1/"):
			_, _ = fmt.Fprint(w, `{"id":"box","status":{"state":"Running"}}`)
		case path == "/session":
			_, _ = fmt.Fprint(w, `{"session_id":"s1"}`)
		default:
			answer(w, path)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// sent gives the last request to a path.
func (r *replayer) sent(path string) (string, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := len(r.requests) - 1; n >= 0; n-- {
		if r.requests[n].path == path {
			return r.requests[n].body, true
		}
	}
	return "", false
}

func (r *replayer) instance(t *testing.T, blocks map[string]any) *instance {
	all := map[string]any{"connection": map[string]any{"domain": r.URL, "api_key": "k", "use_server_proxy": true}}
	for k, v := range blocks {
		all[k] = v
	}
	raw, err := json.Marshal(all)
	require.NoError(t, err)
	p, err := newProvider(raw)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	i := p.newInstance("box")
	i.starting.Store(true) // no search for the cause of what is replayed
	t.Cleanup(i.Detach)
	return i
}

func replay(status int, chunks []string) func(http.ResponseWriter, string) {
	return func(w http.ResponseWriter, _ string) {
		w.WriteHeader(status)
		for _, c := range chunks {
			_, _ = io.WriteString(w, c)
			w.(http.Flusher).Flush()
		}
	}
}

// run executes a request and gives its result with the two streams.
func runIn(t *testing.T, i *instance, req core.ExecRequest) (core.ExecResult, string, string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out := core.NewCollector(0)
	defer out.Close()
	res, err := i.Exec(ctx, req, out)
	return res, out.Output(core.Stdout).String(), out.Output(core.Stderr).String(), err
}

type recordedStream struct {
	Case    string          `json:"case"`
	Seq     int             `json:"seq"`
	Request json.RawMessage `json:"request"`
	Status  int             `json:"status"`
	Chunks  []string        `json:"chunks"`
}

func TestRecordedStreamsAreUnderstood(t *testing.T) {
	type want struct {
		code           int
		stdout, stderr string
		errorType      string
		kind           core.Kind
	}
	wanted := map[string]want{
		"command_fg/1":    {stdout: "hi"},
		"command_fg/2":    {code: 3, stdout: "out", stderr: "err\nCommandExecError: 3"},
		"command_fg/3":    {stdout: "no-newline"},
		"command_fg/4":    {stdout: "a\n\nb"},
		"command_fg/5":    {stdout: "x\ny\nz"},
		"command_fg/6":    {stdout: "\ufffd\ufffd caf\u00e9 \u20ac"},
		"command_fg/7":    {},
		"command_fg/8":    {code: 1, stderr: "CommandExecError: 1"},
		"command_fg/9":    {code: 137, stderr: "CommandExecError: -1"},
		"command_fg/11":   {stdout: "done"},
		"command_fg/12":   {stdout: "1\n2\n3"},
		"command_fg/14":   {stdout: "started"},
		"command_fg/15":   {stdout: "rc=0"},
		"command_opts/5":  {kind: core.KindInvalid},
		"command_opts/12": {kind: core.KindInvalid},
		"command_opts/13": {code: 137, stderr: "CommandExecError: -1"}, // in time: nobody here had a limit
		"session/2":       {stdout: "/tmp\ne"},
		"session/9":       {code: 6, stderr: "CommandExecError: 6"},
		"session/12":      {code: core.NoExitCode, errorType: core.ErrorTypeSandbox},
		"session/17":      {stdout: "first\nlate"},
		"session/21":      {code: core.NoExitCode, errorType: core.ErrorTypeSandbox},
		"oom_docker/4":    {code: 137, stderr: "CommandExecError: -1"},
		"execd_dead/1":    {code: core.NoExitCode, errorType: core.ErrorTypeSandbox},
	}
	r := newReplayer(t)
	i := r.instance(t, nil)
	seen := 0
	for _, rec := range recorded[recordedStream](t, "streams.jsonl") {
		w, ok := wanted[fmt.Sprintf("%s/%d", rec.Case, rec.Seq)]
		if !ok {
			continue
		}
		seen++
		t.Run(fmt.Sprintf("%s/%d", rec.Case, rec.Seq), func(t *testing.T) {
			r.mu.Lock()
			r.answer = replay(rec.Status, rec.Chunks)
			r.mu.Unlock()
			res, stdout, stderr, err := runIn(t, i, core.ExecRequest{Command: "x"})
			if w.kind != "" {
				assert.Equal(t, w.kind, core.KindOf(err), "%v", err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, w.code, res.ExitCode, res.Reason)
			assert.Equal(t, w.errorType, res.ErrorType, res.Reason)
			assert.Equal(t, w.stdout, stdout)
			assert.Equal(t, w.stderr, stderr)
		})
	}
	assert.Equal(t, len(wanted), seen)
}

// A stream that ends anywhere before its last event has no result, in whatever good order it ends.
func TestCutStreamIsNeverSuccess(t *testing.T) {
	var whole string
	for _, rec := range recorded[recordedStream](t, "streams.jsonl") {
		if rec.Case == "command_fg" && rec.Seq == 12 {
			whole = strings.Join(rec.Chunks, "")
		}
	}
	last := strings.LastIndex(strings.TrimRight(whole, "\n"), "}")
	require.Greater(t, last, 100)
	r := newReplayer(t)
	i := r.instance(t, nil)
	for cut := 0; cut <= last; cut++ {
		r.mu.Lock()
		r.answer = replay(http.StatusOK, []string{whole[:cut]})
		r.mu.Unlock()
		res, _, _, err := runIn(t, i, core.ExecRequest{Command: "x"})
		require.NoError(t, err)
		require.Equal(t, core.ErrorTypeSandbox, res.ErrorType, "cut after %q", whole[:cut])
		require.Equal(t, core.NoExitCode, res.ExitCode)
	}
	r.mu.Lock()
	r.answer = replay(http.StatusOK, []string{whole[:last+1]})
	r.mu.Unlock()
	res, stdout, _, err := runIn(t, i, core.ExecRequest{Command: "x"})
	require.NoError(t, err)
	assert.Equal(t, core.ExecResult{}, res)
	assert.Equal(t, "1\n2\n3", stdout)
}

func TestStandardEventFramingIsReadToo(t *testing.T) {
	r := newReplayer(t)
	i := r.instance(t, nil)
	r.answer = replay(http.StatusOK, []string{": hello\nevent: message\ndata: {\"type\":\"init\",\"text\":\"1\"}\n\n", "data:{\"type\":\"stdout\",\"text\":\"a\"}\r\n\r\n", "data: {\"type\":\"execution_complete\"}\n\n"})
	res, stdout, _, err := runIn(t, i, core.ExecRequest{Command: "x"})
	require.NoError(t, err)
	assert.Equal(t, core.ExecResult{}, res)
	assert.Equal(t, "a", stdout)
}

type recordedRequest struct {
	Background bool            `json:"background"`
	Path       string          `json:"path"`
	Body       json.RawMessage `json:"body"`
}

// asked is the request that would have led to a recorded one.
func (r recordedRequest) asked(t *testing.T) core.ExecRequest {
	var body struct {
		Command string
		Cwd     string
		Timeout int64
		UID     *int
		Envs    map[string]string
	}
	require.NoError(t, json.Unmarshal(r.Body, &body))
	req := core.ExecRequest{Command: body.Command, Cwd: body.Cwd, Env: body.Envs, Timeout: time.Duration(body.Timeout) * time.Millisecond}
	if body.UID != nil {
		req.User = fmt.Sprint(*body.UID)
	}
	if strings.HasPrefix(body.Command, "su -s /bin/sh -c ") {
		req.Command, req.User = "id -un; pwd; echo $HOME", "agent"
	}
	return req
}

func TestCommandsAreSentAsDaemonsKnowThem(t *testing.T) {
	r := newReplayer(t)
	r.answer = func(w http.ResponseWriter, path string) {
		switch {
		case strings.HasPrefix(path, "/command/status/"):
			_, _ = io.WriteString(w, `{"running":false,"exit_code":0}`)
		case strings.HasSuffix(path, "/logs"), strings.HasPrefix(path, "/session/s1") && !strings.HasSuffix(path, "/run"):
		default:
			replay(http.StatusOK, []string{`{"type":"init","text":"1"}` + "\n\n" + `{"type":"execution_complete"}` + "\n\n"})(w, path)
		}
	}
	seen := map[string]int{}
	for _, rec := range recorded[recordedRequest](t, "requests.jsonl") {
		i := r.instance(t, map[string]any{"operations": map[string]any{"background_exec": rec.Background}})
		req := rec.asked(t)
		path := rec.Path
		switch {
		case path == "/session":
			req.Command, req.KeepBackground = "true", true
		case strings.HasPrefix(path, "/session/"):
			var ok bool
			req.Command, ok = strings.CutPrefix(req.Command, "bash -c '")
			require.True(t, ok)
			req.Command, req.KeepBackground, path = strings.TrimSuffix(req.Command, "'"), true, "/session/s1/run"
		}
		seen[strings.Split(path, "/")[1]]++
		_, _, _, err := runIn(t, i, req)
		require.NoError(t, err)
		sent, ok := r.sent(path)
		require.True(t, ok, path)
		assert.JSONEq(t, string(rec.Body), sent)
	}
	assert.Greater(t, seen["command"], 8)
	assert.Equal(t, 3, seen["session"])
}
