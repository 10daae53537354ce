package opensandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// declared is where a request differs on purpose from one that was recorded.
type declared struct {
	at    *regexp.Regexp // the keys of the lines
	route *regexp.Regexp // and their method and path; nil is any
	part  string         // "query", "body" or "path"
	why   string
	shows atomic.Bool
}

func differs(at, route, part, why string) *declared {
	d := &declared{at: regexp.MustCompile(at), part: part, why: why}
	if route != "" {
		d.route = regexp.MustCompile(route)
	}
	return d
}

// wireDifferences are all of them; each has to show somewhere.
var wireDifferences = []*declared{
	differs(`create_ok/[35]$`, "", "body", "a sandbox without an end would outlive a creator that is gone: there is always a timeout"),
	differs(`create_ok/1$`, "", "body", "an environment has texts only: null, which takes a variable away, can't be said"),
	differs(`create_errors/([1-69]|1[056]|2[026])$`, "", "body", "such a request is not made, for the reason that it was refused for; what counts is that the refusal is understood"),
	differs(`create_errors/14$`, "", "body", "a value is made one that servers take"),
	differs(`create_errors/2[45]$`, "", "body", "whether a volume can be written to is always said"),
	differs(`snapshots/9$`, "", "body", "an entrypoint is always named, also that of a snapshot"),
	differs(`.`, `^GET /(v1/)?(sandboxes|snapshots)$`, "query", "lists are read whole, a hundred at a time; who wants a part of one takes it here"),
	differs(`unauthenticated/5$`, `^GET /sandboxes$`, "path", "routes are asked for below /v1, where servers of all versions have them"),
	differs(`endpoints/(3|12|13)$`, "", "query", "false is said by leaving it out, and addresses that are signed are not asked for"),
	differs(`endpoints/11$`, "", "path", "a port is a number"),
	differs(`endpoints/15$`, "", "path", "routes are asked for below /v1, where servers of all versions have them"),
	differs(`renew/[34]$`, "", "body", "a time is always sent, and well-formed"),
	differs(`oom_docker/2$`, "", "query", "only what the runtime tells is of use"),
	differs(`command_opts/[34]$`, "", "body", "a directory's name is no pattern: the daemon would replace the variable, the command's shell goes there instead"),
	differs(`command_opts/12$`, "", "body", "a group comes with a user"),
	differs(`command_opts/(16|17|18|19|21|23)$`, "", "body", "such a request is not made; what counts is that the refusal is understood"),
	differs(`command_(opts/24|bg/18)$`, "", "body", "what is too long for an argument is not sent as one"),
	differs(`execd:session/23$|busybox/6$`, "", "body", "a session without a directory is asked for with an empty object"),
	differs(`^(execd:session|lifecycle_extra:busybox)/`, `^POST /session/.*/run$`, "body", "the command gets a shell of its own, which can end without the session's, and no time limit: the daemon would kill only the shell"),
	differs(`execd:files_(upload/(3|5|1[34567])|download/21)$`, "", "body", "one file to a request, and all that can be said of it is"),
	differs(`peer_trace:peer/50$`, "", "body", "only the beginning of the file was recorded: what is missing is made up"),
	differs(`execd:files_(upload/4|other/18)$`, "", "query", "one file to a request"),
	differs(`execd:files_other/21$`, "", "body", "a folder's owner and mode are the daemon's"),
	differs(`create_variants/(6|15)$`, "", "body", "a session without anything special is asked for with an object, and what the daemon does not know is not asked of it"),
}

// byHand are exchanges that no operation of ours makes: their requests are sent by hand, with the client that all operations use. The
// project's own daemon answers those of the daemon as was recorded, see agent/internal/execd.
var byHand = []*handmade{
	on(`^GET /(health|version|v1/nope)$`, "nothing depends on a server's version; whether it lives shows with the first request"),
	on(`^PATCH `, "labels are set with the create"),
	on(`^POST /v1/sandboxes/[^/]+/snapshots$|^GET /v1/snapshots/`, "snapshots are made by those who run the server"),
	on(`^GET .*/diagnostics/logs`, "the entrypoint's output tells nothing of the cause of its end"),
	on(`^POST /v1/metrics/events$`, "we report nothing of users to the server"),
	on(`^(OPTIONS|HEAD|PUT) `, "no such methods"),
	on(`^GET /(nope|code.*)$|^POST /code`, "no such routes"),
	on(`/proxy/`, "ports are for their users, who get the address"),
	on(`^(POST|GET) /files/(mv|permissions|search|replace)|^GET /directories/list|^DELETE /directories`, "commands do that"),
	on(`^GET /pty/[^/]+/ws`, "what is no handshake is not sent"),
	{is: func(e *exchange) bool {
		return e.header["Range"]+e.header["If-Modified-Since"] != "" || strings.Contains(e.query, "offset=")
	},
		why: "files are read whole, and always"},
	{is: func(e *exchange) bool {
		return e.daemon && (strings.HasPrefix(e.request, "{bad") || strings.HasPrefix(e.request, "{nope") ||
			e.path == "/files/upload" && e.status == http.StatusBadRequest)
	}, why: "what is sent is well-formed"},
	{is: func(e *exchange) bool {
		return e.daemon && (e.Method != http.MethodPost && strings.HasPrefix(e.path, "/files") && !strings.Contains(e.query, "path=") ||
			e.Method == http.MethodDelete && e.path == "/command" && e.query == "")
	}, why: "what a request is about is always said"},
}

type handmade struct {
	is    func(*exchange) bool
	why   string
	shows atomic.Bool
}

func on(pattern, why string) *handmade {
	re := regexp.MustCompile(pattern)
	return &handmade{is: func(e *exchange) bool { return re.MatchString(route(e)) }, why: why}
}

// wireReplay is the replay of one exchange.
type wireReplay struct {
	t *testing.T
	e *exchange
	i *instance
	// also answers requests that belong to the same operation.
	also func(w http.ResponseWriter, r *http.Request) bool

	mu   sync.Mutex
	sent *http.Request
	body string
}

// Every request that was recorded is made, by the operation that makes it here, and its answer is understood.
func replayExchanges(t *testing.T, ledger *wireLedger) {
	for _, e := range ledger.exchanges(t) {
		ok := t.Run(e.key(), func(t *testing.T) {
			r := newWireReplay(t, e)
			r.perform()
			r.compare()
		})
		if ok {
			ledger.use("exchange", e.lines...)
		}
	}
	for _, d := range wireDifferences {
		assert.True(t, d.shows.Load(), "the difference at %s %v does not show: take it out of the table", d.at, d.route)
	}
	for _, h := range byHand {
		assert.True(t, h.shows.Load(), "nothing is sent by hand because %s", h.why)
	}
}

func newWireReplay(t *testing.T, e *exchange) *wireReplay {
	r := &wireReplay{t: t, e: e}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	connection := map[string]any{"domain": server.URL, "api_key": e.header[http.CanonicalHeaderKey(headerAPIKey)], "use_server_proxy": true}
	for name, value := range e.header {
		if strings.EqualFold(name, headerAPIKey) {
			connection["api_key"] = value
		}
	}
	if connection["api_key"] == nil {
		connection["api_key"] = ""
	}
	raw, err := json.Marshal(map[string]any{
		"connection": connection, "attribution": map[string]any{"enabled": false}, "create": map[string]any{"image_pull_policy": nil, "retries": 0},
		"operations": map[string]any{"retries": 1, "retry_delay_s": 0.001, "retry_max_delay_s": 0.001},
	})
	require.NoError(t, err)
	p, err := newProvider(raw)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	box := e.box
	if box == "" {
		box = "box"
	}
	r.i = p.newInstance(box)
	r.i.starting.Store(true) // no search for the cause of what is replayed
	t.Cleanup(r.i.Detach)
	at := endpoint{url: server.URL, header: http.Header{}}
	if e.daemon && e.box != "" {
		at.url += "/v1/sandboxes/" + box + "/proxy/44772"
		at.header.Set(headerAPIKey, p.rest.key)
	}
	if token := e.header[headerToken]; token != "" {
		at.header.Set(headerToken, token)
	}
	r.i.at = &at
	return r
}

func (r *wireReplay) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	req.Body = io.NopCloser(bytes.NewReader(p))
	path := req.URL.Path
	if m := proxied.FindStringSubmatch(path); m != nil {
		path = m[2]
	}
	if r.also != nil && r.also(w, req) {
		return
	}
	r.mu.Lock()
	first := r.sent == nil && req.Method == r.e.Method
	if first {
		r.sent, r.body = req.Clone(context.Background()), string(p)
		r.sent.URL.Path = path
	}
	r.mu.Unlock()
	if !first {
		http.Error(w, "not recorded", http.StatusTeapot)
		return
	}
	for name, value := range r.e.Answer {
		switch strings.ToLower(name) {
		case "transfer-encoding", "connection":
		case "content-length":
			if n, err := strconv.Atoi(value); err == nil && (n == len(r.e.body) || n == 1<<63-1) {
				w.Header().Set(name, value)
			}
		default:
			w.Header().Set(name, value)
		}
	}
	w.WriteHeader(r.e.status)
	_, _ = io.WriteString(w, r.e.body)
	if w.Header().Get("Content-Length") == strconv.Itoa(1<<63-1) {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// compare checks the request that was made.
func (r *wireReplay) compare() {
	t, e := r.t, r.e
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.Failed() {
		return
	}
	require.NotNil(t, r.sent, "nothing was asked")
	found := map[string]string{}
	if r.sent.URL.Path != e.path {
		found["path"] = r.sent.URL.Path + " instead of " + e.path
	}
	want, err := url.ParseQuery(e.query)
	require.NoError(t, err)
	got := r.sent.URL.Query()
	if e.daemon && strings.HasSuffix(e.path, "/logs") && want.Get("cursor") == "" {
		want.Set("cursor", "0") // the beginning, which we always say
	}
	if !reflect.DeepEqual(got, want) {
		found["query"] = fmt.Sprintf("%v instead of %v", got, want)
	}
	if why := r.sameBody(); why != "" {
		found["body"] = why
	}
	for name, value := range e.header {
		switch strings.ToLower(name) {
		case "open-sandbox-api-key", "x-execd-access-token", "range", "if-modified-since":
			assert.Equal(t, value, r.sent.Header.Get(name), name)
		case "content-type":
			if value == "" || e.request == "" {
				continue
			}
			wanted, _, err := mime.ParseMediaType(value)
			require.NoError(t, err)
			got, _, err := mime.ParseMediaType(r.sent.Header.Get(name))
			if found["body"] == "" && assert.NoError(t, err) {
				assert.Equal(t, wanted, got)
			}
		case "accept":
			if value != "*/*" {
				assert.Equal(t, value, r.sent.Header.Get(name))
			}
		}
	}
	assert.Empty(t, r.sent.Header.Get("OPEN-SANDBOX-CLIENT-IP"), "where we are is nobody's business")
	for _, d := range wireDifferences {
		if d.at.String() != "." && d.at.MatchString(e.key()) && (d.route == nil || d.route.MatchString(route(e))) {
			assert.NotEmpty(t, found[d.part], "it does not differ: take it out of the table")
		}
	}
	for part, what := range found {
		n := slices.IndexFunc(wireDifferences, func(d *declared) bool {
			return d.part == part && d.at.MatchString(e.key()) && (d.route == nil || d.route.MatchString(route(e)))
		})
		if n < 0 {
			t.Errorf("%s: %s", part, what)
			continue
		}
		wireDifferences[n].shows.Store(true)
	}
}

// sameBody compares two bodies by what they mean.
func (r *wireReplay) sameBody() string {
	kind, params, _ := mime.ParseMediaType(r.sent.Header.Get("Content-Type"))
	if kind == "multipart/form-data" && strings.HasPrefix(r.e.request, "--") {
		got, err := readForm(r.body, params["boundary"])
		require.NoError(r.t, err)
		want, err := readForm(r.e.request, strings.SplitN(strings.TrimPrefix(r.e.request, "--"), "\r\n", 2)[0])
		if err != nil && r.e.BodyLen == 0 {
			return err.Error()
		}
		for n := range want {
			if n >= len(got) || !reflect.DeepEqual(got[n], want[n]) {
				return fmt.Sprintf("%.200q instead of %.200q", got, want)
			}
		}
		if len(got) != len(want) {
			return "another number of parts"
		}
		return ""
	}
	var got, want any
	if json.Unmarshal([]byte(r.body), &got) == nil && json.Unmarshal([]byte(r.e.request), &want) == nil {
		normal(got)
		normal(want)
		if !reflect.DeepEqual(got, want) {
			return fmt.Sprintf("%.600s instead of %.600s", r.body, r.e.request)
		}
		return ""
	}
	if r.body != r.e.request {
		return fmt.Sprintf("%.600q instead of %.600q", r.body, r.e.request)
	}
	return ""
}

// normal takes away what a body says without need, and gives times one form.
func normal(body any) {
	m, ok := body.(map[string]any)
	if !ok {
		return
	}
	for k, v := range m {
		text, isText := v.(string)
		switch {
		case k == "secureAccess" && v == false, k == "timeout" && v == 0.0, k == "background" && v == false:
			delete(m, k) // that is the default
		case k == "rows" && v == 24.0, k == "cols" && v == 80.0:
			delete(m, k) // the same; a daemon that knows sizes has the terminal right from the first byte, others leave it alone
		case isText && k == "expiresAt":
			if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
				m[k] = at.UTC()
			}
		}
	}
}

type formPart struct {
	name, content string
	meta          any // when the content is JSON
}

func readForm(body, boundary string) ([]formPart, error) {
	var all []formPart
	for rd := multipart.NewReader(strings.NewReader(body), boundary); ; {
		p, err := rd.NextRawPart()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		content, err := io.ReadAll(p)
		one := formPart{name: p.FormName() + " " + p.FileName(), content: string(content)}
		if p.FormName() == "metadata" && json.Unmarshal(content, &one.meta) == nil {
			one.content = ""
		}
		all = append(all, one)
		if err != nil {
			return all, err
		}
	}
}

// refused checks an error against the recorded answer: its status, its code, and the reason that it gave.
func (r *wireReplay) refused(err error) {
	r.t.Helper()
	var api *apiError
	require.ErrorAs(r.t, err, &api)
	assert.Equal(r.t, r.e.status, api.status)
	var body struct {
		Code, Message, Error string
		Detail               json.RawMessage
	}
	if json.NewDecoder(strings.NewReader(r.e.body)).Decode(&body) == nil {
		assert.Equal(r.t, body.Code, api.code)
		if body.Message+body.Error != "" {
			assert.Equal(r.t, clip(body.Message+body.Error, 500), api.message)
		}
	}
	if r.e.body != "" {
		assert.NotEmpty(r.t, api.message)
	}
}

// outcome checks that a request failed when its recorded answer is a failure.
func (r *wireReplay) outcome(err error) (ok bool) {
	r.t.Helper()
	if r.e.status/100 == 2 {
		require.NoError(r.t, err)
		return true
	}
	r.refused(err)
	return false
}
