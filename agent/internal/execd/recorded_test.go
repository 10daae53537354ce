package execd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exchange is one that was recorded between a client and the other daemon, version 1.0.19.
type exchange struct {
	Case     string
	Seq      int
	Kind     string // "http", or "stream" when the answer is one of events
	Method   string
	URL      string
	Headers  map[string]string
	Request  string
	Long     bool // the request is a command longer than an argument may be
	Status   int
	Answer   map[string]string // headers
	Body     *string
	Chunks   []string
	Auth     bool   // of a daemon that wants a token
	Recorded string // the file that holds request and answer
}

func (e exchange) key() string { return fmt.Sprintf("%s/%d", e.Case, e.Seq) }

// difference is where this daemon does not answer as was recorded, and what it answers instead.
type difference struct {
	why    string
	status int
	body   string   // what the answer contains
	out    []string // or what the stream tells
	end    string   // and how it ends
}

var differences = map[string]difference{
	"command_fg/16":     {why: "the recording is cut", status: 200, out: []string{strings.Repeat("k", 200000)}, end: "0"},
	"command_opts/21":   {why: "argv is known, as in later versions", status: 200, out: []string{"hi"}, end: "0"},
	"command_opts/24":   {why: "a command may be of any length", status: 200, out: []string{strings.Repeat("x", 140000)}, end: "0"},
	"command_bg/18":     {why: "a command may be of any length", status: 200, end: "0"},
	"command_bg/19":     {why: "a command may be of any length", status: 200, body: `"exit_code":0`},
	"command_bg/27":     {why: "a command is known from the moment that its id was told", status: 200, body: `"content":"sleep 0.2"`},
	"session/7":         {why: "there is no script file whose name could be told", status: 200, out: []string{"[]", "/proc/self/fd/5: line 1: f: command not found"}, end: "127"},
	"files_download/4":  {why: "a directory has no bytes: not a broken answer", status: 400, body: "path is a directory: /tmp/u"},
	"files_download/12": {why: "a range that can't be read is refused with a whole answer", status: 416, body: "invalid range"},
	"files_download/14": {why: "a range that can't be read is refused with a whole answer", status: 416, body: "invalid range"},
	"files_download/24": {why: "what the kernel makes up can be downloaded", status: 200, body: "execd"},
	"code/1":            {why: "no code interpreter, said at once", status: 501, body: codeUnsupported},
	"code/2":            {why: "no code interpreter, said at once", status: 501, body: codeUnsupported},
	"code/3":            {why: "no code interpreter, said at once", status: 501, body: codeUnsupported},
}

// interruptions are requests that were recorded after those that they interrupted.
var interruptions = map[string]string{
	"command_interrupt/12": "client_disconnect/2",
	"session/20":           "session/19",
}

// recordedExchanges reads the recordings. Streams that other packages need too are in their file.
func recordedExchanges(t *testing.T) []exchange {
	t.Helper()
	type stream struct {
		Case    string
		Seq     int
		Request json.RawMessage
		Status  int
		Chunks  []string
	}
	streams := map[string]stream{}
	for _, s := range readLines[stream](t, "../../../providers/opensandbox/testdata/streams.jsonl") {
		streams[fmt.Sprintf("%s/%d", s.Case, s.Seq)] = s
	}
	all := readLines[exchange](t, "testdata/execd.jsonl")
	for i, e := range all {
		if e.Recorded != "" {
			s, ok := streams[e.key()]
			require.True(t, ok, "%s is not in %s", e.key(), e.Recorded)
			all[i].Method, all[i].Request, all[i].Status, all[i].Chunks = http.MethodPost, string(s.Request), s.Status, s.Chunks
		}
		if e.Long {
			p, err := json.Marshal(RunCommandRequest{Command: "echo " + strings.Repeat("x", 140000), Background: e.Case == "command_bg"})
			require.NoError(t, err)
			all[i].Request = string(p)
		}
	}
	return all
}

func readLines[T any](t *testing.T, path string) []T {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var all []T
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one T
		require.NoError(t, json.Unmarshal(lines.Bytes(), &one), lines.Text())
		all = append(all, one)
	}
	require.NoError(t, lines.Err())
	return all
}

// replay sends recorded requests to a daemon. Ids of the recording stand for those that the daemon gave.
type replay struct {
	daemon  *daemon
	all     map[string]exchange
	ids     map[string]string
	session string // the first
	done    map[string]bool
	uses    *usedDifferences
}

type usedDifferences struct {
	mu   sync.Mutex
	keys map[string]bool
}

// Every exchange that was recorded gets an answer of the same status, shape and
// meaning; the differences are those in the table, and all of them are real.
func TestEveryRecordedExchangeIsAnsweredAsRecorded(t *testing.T) {
	t.Parallel()
	// One group after the other would take a while: they wait for commands and for graces.
	groups := map[string][]exchange{}
	all := map[string]exchange{}
	for _, e := range recordedExchanges(t) {
		group := e.Case
		switch {
		case strings.HasPrefix(group, "files"):
			group = "files"
		case group == "client_disconnect":
			group = "command_interrupt"
		}
		groups[group] = append(groups[group], e)
		all[e.key()] = e
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	open := startDaemon(t, env, contained(t)...)
	guarded := startDaemon(t, append(env, varToken+"=sekret"), contained(t)...)
	used := &usedDifferences{keys: map[string]bool{}}
	t.Run("cases", func(t *testing.T) {
		for name, group := range groups {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := &replay{all: all, ids: map[string]string{}, done: map[string]bool{}, uses: used}
				for _, key := range interruptions {
					r.done[key] = true
				}
				for _, e := range group {
					r.daemon = &daemon{t: t, base: open.base}
					if e.Auth {
						r.daemon.base = guarded.base
					}
					if !r.done[e.key()] {
						r.exchange(t, e)
					}
					if t.Failed() {
						t.Logf("failed at %s: %s %s %.200s", e.key(), e.Method, e.URL, e.Request)
						return
					}
				}
			})
		}
	})
	for key := range differences {
		assert.True(t, used.keys[key], "the difference at %s does not show: take it out of the table", key)
	}
}

func (r *replay) exchange(t *testing.T, e exchange) {
	r.done[e.key()] = true
	d, differs := differences[e.key()]
	if differs {
		r.uses.mu.Lock()
		r.uses.keys[e.key()] = true
		r.uses.mu.Unlock()
	}
	path, body := r.actual(t, e)
	if e.key() == "command_interrupt/9" {
		untilIgnored(t, "trap '' TERM; while", syscall.SIGTERM)
	}
	switch {
	case e.Case == "metrics":
		r.metrics(t, e, path)
	case e.key() == "client_disconnect/1", e.key() == "command_bg/26":
		r.begin(t, e, path, body)
	case e.Kind == "stream":
		r.stream(t, e, d, path, body)
	default:
		// Commands end when they do.
		status, answer, headers := r.send(e, path, body)
		wanted := func() bool {
			if differs {
				return status == d.status && strings.Contains(answer, d.body)
			}
			return status == e.Status && r.same(e, answer) == nil
		}
		for until := time.Now().Add(10 * time.Second); strings.HasPrefix(e.URL, "/command/") && !wanted() && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
			status, answer, headers = r.send(e, path, body)
		}
		if differs {
			require.Equal(t, d.status, status, brief(answer))
			require.True(t, strings.Contains(answer, d.body), brief(answer))
			require.False(t, status == e.Status && e.Body != nil && r.same(e, answer) == nil, "it does not differ")
			return
		}
		require.Equal(t, e.Status, status, answer)
		require.NoError(t, r.same(e, answer))
		r.learn(e, answer)
		for name, want := range e.Answer {
			require.Equal(t, want, headers.Get(name), name)
		}
	}
}

// untilIgnored waits until a process with that in its command line ignores a signal.
func untilIgnored(t *testing.T, command string, sig syscall.Signal) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		for _, name := range found {
			line, err := os.ReadFile(name)
			if err != nil || !strings.Contains(string(line), command) {
				continue
			}
			status, err := os.ReadFile(filepath.Join(filepath.Dir(name), "status"))
			if err != nil {
				continue
			}
			_, mask, _ := strings.Cut(string(status), "SigIgn:\t")
			mask, _, _ = strings.Cut(mask, "\n")
			bits, err := strconv.ParseUint(mask, 16, 64)
			if err == nil && bits&(1<<(sig-1)) != 0 {
				return true
			}
		}
		return false
	}, 10*time.Second, 5*time.Millisecond)
}

// brief is as much of an answer as helps.
func brief(s string) string { return s[:min(len(s), 400)] }

// actual is the request with the ids of this run.
func (r *replay) actual(t *testing.T, e exchange) (path, body string) {
	t.Helper()
	path = e.URL
	if strings.HasPrefix(path, "/session/") && strings.HasSuffix(path, "/run") {
		path = "/session/" + r.session + "/run" // there was one
	}
	for from, to := range r.ids {
		path = strings.ReplaceAll(path, from, to)
	}
	_, port, ok := strings.Cut(r.daemon.base[len("http://"):], ":")
	require.True(t, ok)
	path = strings.Replace(path, "/proxy/44772/", "/proxy/"+port+"/", 1)
	return path, e.Request
}

func (r *replay) send(e exchange, path, body string) (int, string, http.Header) {
	var headers []string
	for k, v := range e.Headers {
		headers = append(headers, k, v)
	}
	res := r.daemon.do(e.Method, path, body, headers...)
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err.Error(), res.Header
	}
	return res.StatusCode, string(p), res.Header
}

// learn takes ids from an answer.
func (r *replay) learn(e exchange, answer string) {
	var was, is struct {
		SessionID string `json:"session_id"`
	}
	if e.Body != nil && json.Unmarshal([]byte(*e.Body), &was) == nil && json.Unmarshal([]byte(answer), &is) == nil && was.SessionID != "" {
		r.ids[was.SessionID] = is.SessionID
		if r.session == "" {
			r.session = is.SessionID
		}
	}
}

// same compares an answer with what was recorded: JSON by its shape and its
// values, without times and ids; the rest byte for byte.
func (r *replay) same(e exchange, answer string) error {
	if e.Body == nil {
		return nil
	}
	want := *e.Body
	for from, to := range r.ids {
		want = strings.ReplaceAll(want, from, to)
	}
	if want == answer {
		return nil
	}
	var a, b any
	if json.Unmarshal([]byte(want), &a) != nil || json.Unmarshal([]byte(answer), &b) != nil {
		return fmt.Errorf("%q instead of %q", answer, want)
	}
	return sameJSON("", a, b)
}

// changing are fields whose values are those of one run.
var changing = regexp.MustCompile(`\.(started_at|finished_at|modified_at|created_at|timestamp|session_id)$`)

func sameJSON(at string, want, got any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s: %v instead of %v", at, got, want)
		}
		for k := range w {
			if _, ok := g[k]; !ok {
				return fmt.Errorf("%s.%s is missing in %v", at, k, got)
			}
			if w["type"] == "directory" && k == "size" {
				continue // depends on the file system
			}
			if err := sameJSON(at+"."+k, w[k], g[k]); err != nil {
				return err
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s: %v instead of %v", at, got, want)
		}
		for i := range w {
			if err := sameJSON(fmt.Sprintf("%s[%d]", at, i), w[i], g[i]); err != nil {
				return err
			}
		}
	default:
		if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", got) || !changing.MatchString(at) && want != got {
			return fmt.Errorf("%s: %v instead of %v", at, got, want)
		}
	}
	return nil
}

// begin reads the head of a stream and drops it.
func (r *replay) begin(t *testing.T, e exchange, path, body string) {
	t.Helper()
	res := r.daemon.do(e.Method, path, body)
	defer res.Body.Close()
	require.Equal(t, e.Status, res.StatusCode)
	var recorded string
	for one, err := range events(strings.NewReader(strings.Join(e.Chunks, ""))) {
		require.NoError(t, err)
		recorded = one.Text
		break
	}
	for one, err := range events(res.Body) {
		require.NoError(t, err)
		require.Equal(t, "init", one.Type)
		r.ids[recorded] = one.Text
		break
	}
}

// stream compares what two streams tell: the texts of each kind in their order, and the end.
func (r *replay) stream(t *testing.T, e exchange, d difference, path, body string) {
	t.Helper()
	var got []told
	attempt := func() {
		got = nil
		res := r.daemon.do(e.Method, path, body)
		defer res.Body.Close()
		status := e.Status
		if d.why != "" {
			status = d.status
		}
		if status != http.StatusOK {
			p, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, status, res.StatusCode, string(p))
			if d.why != "" {
				require.Contains(t, string(p), d.body)
				return
			}
			recorded := strings.Join(e.Chunks, "")
			require.NoError(t, r.same(exchange{Body: &recorded}, string(p)))
			return
		}
		require.Equal(t, status, res.StatusCode)
		require.Equal(t, "text/event-stream", res.Header.Get("Content-Type"))
		require.Equal(t, "no", res.Header.Get("X-Accel-Buffering"))
		interruption := interruptions[e.key()]
		for one, err := range events(res.Body) {
			require.NoError(t, err)
			got = append(got, one)
			if one.Type == "stdout" && interruption != "" {
				// What is to be interrupted is the one that runs, whatever its id was.
				i := r.all[interruption]
				for from := range r.ids {
					i.URL = strings.ReplaceAll(i.URL, from, r.ids[from])
				}
				i.URL = regexp.MustCompile(`id=.*`).ReplaceAllString(i.URL, "id="+got[0].Text)
				status, answer, _ := r.send(i, i.URL, "")
				require.Equal(t, i.Status, status, answer)
				interruption = ""
			}
		}
		require.Empty(t, interruption)
	}
	attempt()
	if got == nil {
		return
	}
	var want []told
	for one, err := range events(strings.NewReader(strings.Join(e.Chunks, ""))) {
		require.NoError(t, err)
		want = append(want, one)
	}
	if len(want) > 0 && want[0].Type == "init" {
		if _, known := r.ids[want[0].Text]; !known {
			r.ids[want[0].Text] = got[0].Text
		}
	}
	if d.why != "" {
		require.Equal(t, d.out, texts(got, "stdout"))
		require.Equal(t, d.end, end(t, got))
		return
	}
	if e.key() == "client_disconnect/3" {
		// The command that lost its client writes the file a second after it has begun.
		for until := time.Now().Add(10 * time.Second); end(t, got) != end(t, want) && time.Now().Before(until); {
			time.Sleep(10 * time.Millisecond)
			attempt()
		}
	}
	require.Equal(t, "init", got[0].Type)
	require.Equal(t, texts(want, "stdout"), texts(got, "stdout"))
	require.Equal(t, texts(want, "stderr"), texts(got, "stderr"))
	// A sign of life may come anywhere, and there are as many as there is time for.
	require.GreaterOrEqual(t, len(texts(got, "ping")), len(texts(want, "ping")))
	require.Equal(t, end(t, want), end(t, got))
	last := func(all []told) told {
		one := all[len(all)-1]
		for i := len(all) - 1; one.Type == "ping"; i-- {
			one = all[i]
		}
		return one
	}
	require.Equal(t, last(want), last(got))
}

// metrics compares the kinds of what is measured; the values were those of another machine.
func (r *replay) metrics(t *testing.T, e exchange, path string) {
	t.Helper()
	res := r.daemon.do(http.MethodGet, path, "")
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	lines := bufio.NewScanner(res.Body)
	require.True(t, lines.Scan())
	var m map[string]float64
	require.NoError(t, json.Unmarshal(lines.Bytes(), &m))
	for _, key := range []string{"cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "timestamp"} {
		require.Contains(t, m, key)
	}
	require.Len(t, m, 5)
	require.Positive(t, m["mem_total_mib"])
	require.Less(t, m["mem_used_mib"], m["mem_total_mib"])
	require.GreaterOrEqual(t, m["cpu_count"], float64(1))
}
