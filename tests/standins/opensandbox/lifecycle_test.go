package opensandbox

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// lifecycleDifferences are where this server does not answer as the real one, and why. All of them are real.
var lifecycleDifferences = []struct {
	at  *regexp.Regexp
	why string
}{
	{regexp.MustCompile(`^(unauthenticated/[12]|metrics_events/1|snapshots/(3|7|17)|proxy_http/3)$`), "no client of ours asks for that: it is replayed with recorded answers only"},
	{regexp.MustCompile(`^diagnostics/[123]$`), "of the diagnostics there is the text only"},
	{regexp.MustCompile(`^(create_ok/[13]|get_list/[12]|metadata_patch/1|pause_resume/(7|13)|snapshots/11)$`), "extensions and platforms are not told again"},
	{regexp.MustCompile(`^create_errors/([8]|1[1-79]|2\d)$`), "what a real runtime refuses is taken: tests that need a refusal order it"},
	{regexp.MustCompile(`^(get_list/12|endpoints/1[123]|metadata_patch/2)$`), "filters, signed addresses and reserved labels are for others"},
	{regexp.MustCompile(`^renew/[45]$`), "an expiry can always be moved, and is compared before it is checked"},
	{regexp.MustCompile(`^snapshots/2$`), "a snapshot is made at once"},
	{regexp.MustCompile(`^snapshots/9$`), "labels that are inherited show from the beginning"},
}

// answered is a request to the server itself with the answer that was recorded of the real one.
type answered struct {
	Case    string
	Seq     int
	Kind    string
	Method  string
	URL     string
	Headers map[string]string `json:"req_headers"`
	Request string            `json:"req_body"`
	Status  int
	Body    string
}

// The answers of the real server to requests about sandboxes were recorded: this one answers with the same status, code and shape.
func TestLifecycleIsAnsweredAsRecorded(t *testing.T) {
	s, err := Start()
	require.NoError(t, err)
	t.Cleanup(s.Close)
	f, err := os.Open("../../../providers/opensandbox/testdata/wire/lifecycle.jsonl")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	ids := map[string]string{}
	seen := 0
	for lines.Scan() {
		var e answered
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Kind != "http" || strings.Contains(e.URL, "/proxy/44772/") {
			continue // the daemon's part is that of the project's own daemon
		}
		seen++
		key := fmt.Sprintf("%s/%d", e.Case, e.Seq)
		why := ""
		for _, d := range lifecycleDifferences {
			if d.at.MatchString(key) {
				why = d.why
			}
		}
		wrong := e.replay(t, s, ids)
		switch {
		case why != "":
			assert.NotEmpty(t, wrong, "%s does not differ: take it out of the table (%s)", key, why)
		default:
			assert.Empty(t, wrong, key)
		}
	}
	require.NoError(t, lines.Err())
	assert.Greater(t, seen, 100)
}

// later moves the one time that was to come when it was recorded.
func later(text string) string {
	return strings.Replace(text, "2026-11-29T21:53:40.855076+00:00", time.Now().Add(time.Hour).UTC().Format(time.RFC3339), 1)
}

var identity = regexp.MustCompile(`00000000-0000-4000-8000-\d{12}`)

// replay gives what was wrong with the answer.
func (e answered) replay(t *testing.T, s *Server, ids map[string]string) string {
	t.Helper()
	here := func(text string) string {
		return identity.ReplaceAllStringFunc(text, func(id string) string {
			if ids[id] != "" {
				return ids[id]
			}
			return id
		})
	}
	var want, got any
	_ = json.Unmarshal([]byte(e.Body), &want) // some are no JSON
	w, _ := want.(map[string]any)
	if st, ok := w["status"].(map[string]any); ok && e.Method == http.MethodGet && !strings.Contains(e.URL, "/snapshots/") {
		if state := fmt.Sprint(st["state"]); state != "Running" && state != "Paused" {
			// Its entrypoint has ended: nothing runs one here.
			s.SetStatus(here(fmt.Sprint(w["id"])), state, fmt.Sprint(st["reason"]), fmt.Sprint(st["message"]))
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), e.Method, s.URL+here(e.URL[strings.Index(e.URL, ":18090")+6:]), strings.NewReader(later(here(e.Request))))
	require.NoError(t, err)
	for name, value := range e.Headers {
		if value == "lab-key" {
			value = Key
		}
		req.Header.Set(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	p, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	if res.StatusCode != e.Status {
		return fmt.Sprintf("status %d instead of %d: %.200s", res.StatusCode, e.Status, p)
	}
	if json.Unmarshal(p, &got) != nil {
		if string(p) != e.Body {
			return fmt.Sprintf("%.200q instead of %.200q", p, e.Body)
		}
		return ""
	}
	g, _ := got.(map[string]any)
	if id, ok := w["id"].(string); ok && e.Status == http.StatusAccepted {
		ids[id] = fmt.Sprint(g["id"])
	}
	if have, wanted := slices.Sorted(maps.Keys(g)), slices.Sorted(maps.Keys(w)); !slices.Equal(have, wanted) {
		return fmt.Sprintf("fields %v instead of %v", have, wanted)
	}
	if fmt.Sprint(g["code"]) != fmt.Sprint(w["code"]) {
		return fmt.Sprintf("code %v instead of %v", g["code"], w["code"])
	}
	state := func(m map[string]any) string {
		st, _ := m["status"].(map[string]any)
		return fmt.Sprint(st["state"])
	}
	if state(g) != state(w) {
		return fmt.Sprintf("state %s instead of %s", state(g), state(w))
	}
	return ""
}
