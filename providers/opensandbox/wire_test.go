package opensandbox

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// wireFiles are the recordings of a real server, its daemon and another client of both, and how many lines each has.
var wireFiles = map[string]int{
	"create_bodies": 33, "execd": 211, "lifecycle": 207, "lifecycle_extra": 104, "peer_trace": 249, "peer_trace_bg": 36,
	"pty": 392, "pty_tail_loss": 13, "ws_liveness": 9,
}

// wireLine is one line of a recording.
type wireLine struct {
	File string `json:"-"`
	Case string `json:"case"`
	Seq  int    `json:"seq"`
	Kind string `json:"kind"`

	// An exchange.
	Method     string            `json:"method"`
	URL        string            `json:"url"`
	Path       string            `json:"path"`
	N          int               `json:"n"`
	ReqHeaders map[string]string `json:"req_headers"`
	Headers    map[string]string `json:"headers"`
	ReqBody    *string           `json:"req_body"`
	Status     int               `json:"status"`
	Answer     map[string]string `json:"resp_headers"`
	RawBody    json.RawMessage   `json:"body"`
	BodyHead   string            `json:"body_head"`
	BodyLen    int               `json:"body_len"`
	Chunks     json.RawMessage   `json:"chunks"`

	// A message on a socket.
	Dir     string `json:"dir"`
	Conn    string `json:"conn"`
	Hex     string `json:"hex"`
	HexHead string `json:"hex_head"`
	HexTail string `json:"hex_tail"`
	Len     int    `json:"len"`
	Text    string `json:"text"`
	Code    *int   `json:"code"`
	Reason  string `json:"reason"`

	// A measurement.
	What   string          `json:"what"`
	Mode   string          `json:"mode"`
	Size   int             `json:"size"`
	Suffix string          `json:"command_suffix"`
	Runs   int             `json:"runs"`
	Frames json.RawMessage `json:"frames"`
	Events json.RawMessage `json:"events"`
}

func (l *wireLine) key() string { return fmt.Sprintf("%s:%s/%d", l.File, l.Case, l.Seq) }

// body is a body that was recorded as text. The other client's recorder wrote bytes that are no UTF-8 as \xNN.
func (l *wireLine) body() string {
	var s string
	if json.Unmarshal(l.RawBody, &s) != nil {
		return ""
	}
	if strings.HasPrefix(l.File, "peer_trace") {
		s = escapedByte.ReplaceAllStringFunc(s, func(e string) string {
			n, _ := strconv.ParseUint(e[2:], 16, 8) // it matches
			return string([]byte{byte(n)})
		})
	}
	return s
}

var escapedByte = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// wireLedger knows which lines have been replayed.
type wireLedger struct {
	lines map[string][]*wireLine // of each file
	used  map[*wireLine]string   // by what
}

func readWire(t *testing.T) *wireLedger {
	t.Helper()
	l := &wireLedger{lines: map[string][]*wireLine{}, used: map[*wireLine]string{}}
	for file, n := range wireFiles {
		for _, one := range recorded[wireLine](t, "wire/"+file+".jsonl") {
			one.File = file
			l.lines[file] = append(l.lines[file], &one)
		}
		require.Len(t, l.lines[file], n, file)
	}
	return l
}

func (l *wireLedger) use(by string, lines ...*wireLine) {
	for _, one := range lines {
		l.used[one] = by
	}
}

// missing are the lines that nothing has replayed. Comments do not count where the exchanges of their case do.
func (l *wireLedger) missing() []string {
	replayed := map[string]bool{}
	for one := range l.used {
		replayed[one.File+":"+one.Case] = true
	}
	var keys []string
	for _, lines := range l.lines {
		for _, one := range lines {
			comment := one.Kind == "case" || one.Kind == "note" && one.Runs == 0 && one.Frames == nil && one.Events == nil
			if l.used[one] == "" && (!comment || !replayed[one.File+":"+one.Case]) {
				keys = append(keys, one.key())
			}
		}
	}
	return keys
}

// exchange is a recorded request with its answer.
type exchange struct {
	*wireLine
	path    string // on the server, or behind the proxy's part of it
	query   string
	box     string // "" when the daemon was asked directly, or no sandbox
	daemon  bool
	request string // its body
	header  map[string]string
	status  int
	body    string
	lines   []*wireLine
}

var (
	proxied = regexp.MustCompile(`^/v1/sandboxes/([^/]+)/proxy/44772(/.*)$`)
	about   = regexp.MustCompile(`^/v1/sandboxes/([^/]+)`)
)

// exchanges are all of them, in their order.
func (l *wireLedger) exchanges(t *testing.T) []*exchange {
	t.Helper()
	var all []*exchange
	for _, file := range []string{"lifecycle", "lifecycle_extra", "execd", "pty", "peer_trace", "peer_trace_bg"} {
		answers := map[int]*wireLine{}
		for _, one := range l.lines[file] {
			if one.Kind == "resp" {
				answers[one.N] = one
			}
		}
		for _, one := range l.lines[file] {
			e := &exchange{wireLine: one, header: one.ReqHeaders, status: one.Status, lines: []*wireLine{one}}
			target := one.URL
			switch one.Kind {
			case "http":
				if e.body = one.body(); one.BodyHead != "" {
					// Only the beginning was kept: a command's text that fills what an argument can hold.
					e.body = one.BodyHead + `","running":false,"exit_code":255,"error":"fork/exec /usr/bin/bash: argument list too long"}`
				}
			case "sse":
				e.body = streamText(t, one)
			case "req":
				target, e.header, e.request = "http://x"+one.Path, one.Headers, one.body()+one.BodyHead
				if a := answers[one.N]; a != nil {
					e.status, e.body, e.lines = a.Status, a.body(), append(e.lines, a)
				} else {
					e.status, e.body = unrecordedAnswer(e)
				}
			default:
				continue
			}
			if one.ReqBody != nil {
				e.request = *one.ReqBody
			}
			u, err := url.Parse(target)
			require.NoError(t, err, one.key())
			e.path, e.query = u.Path, u.RawQuery
			if m := proxied.FindStringSubmatch(e.path); m != nil {
				e.box, e.path, e.daemon = m[1], m[2], true
			} else if m := about.FindStringSubmatch(e.path); m != nil {
				e.box = m[1]
			}
			e.daemon = e.daemon || file == "execd" || file == "pty"
			all = append(all, e)
		}
	}
	return all
}

// unrecordedAnswer is what a request got whose answer the recorder missed: its connection was closed first.
func unrecordedAnswer(e *exchange) (int, string) {
	switch {
	case e.Method == "DELETE" && strings.HasSuffix(e.Path, "/proxy/44772/"):
		return 200, ""
	case e.Method == "DELETE":
		return 204, ""
	case e.Method == "GET" && strings.Contains(e.Path, "/pty/"):
		return 200, `{"session_id":"` + e.Path[strings.LastIndex(e.Path, "/")+1:] + `","running":true,"output_offset":0}`
	case strings.HasSuffix(e.Path, "/command"):
		return 200, `{"type":"init","text":"00000000000000000000000000000004","timestamp":0}` + "\n\n" + `{"type":"execution_complete","execution_time":0,"timestamp":0}` + "\n\n"
	}
	return 200, ""
}

// streamText is a recorded stream. Of a long one only its beginning was kept.
func streamText(t *testing.T, l *wireLine) string {
	var chunks []string
	if json.Unmarshal(l.Chunks, &chunks) == nil {
		return strings.Join(chunks, "")
	}
	var cut struct{ Head []string }
	require.NoError(t, json.Unmarshal(l.Chunks, &cut), l.key())
	require.Equal(t, "execd:command_fg/16", l.key(), "another recording is cut: say here what is missing")
	cut.Head = append(cut.Head[:2:2], `{"type":"stdout","text":"`+strings.Repeat("k", 200000)+`","timestamp":0}`+"\n\n",
		`{"type":"execution_complete","execution_time":0,"timestamp":0}`+"\n\n")
	return strings.Join(cut.Head, "")
}
