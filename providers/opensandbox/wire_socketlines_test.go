package opensandbox

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// socketDifferences are where a socket is asked for in other words than it was recorded.
var socketDifferences = []*declared{
	differs(`.`, "", "pty=1", "a terminal is what there is when nothing else is said"),
	differs(`.`, "", "since=0", "all that is retained is what there is when nothing else is said"),
	differs(`detach_reattach/(24|28)$`, "", "since", "an offset is a number, and not negative"),
	differs(`proxy_ws/30$`, "", "path", "sockets are those of sessions: what counts is how a server's refusal is understood"),
	differs(`.`, "", "early", "input is sent when the server has said that the session is attached: before that it could get lost"),
	differs(`big_stdin/7$`, "", "pieces", "input is sent in pieces that any server takes"),
	differs(`pty_basic/(22|24|26|27|28|29)$`, "", "frame", "messages that a session has no use for: the socket's own pings show life, and input has one form"),
	differs(`pty_basic/17$|signals/1[67]$`, "", "refused", "a size or signal that the daemon would leave out is an error here"),
}

func differing(t *testing.T, at, part string) {
	t.Helper()
	n := slices.IndexFunc(socketDifferences, func(d *declared) bool { return d.part == part && d.at.MatchString(at) })
	if n < 0 {
		t.Errorf("%s: not as recorded: %s", at, part)
		return
	}
	socketDifferences[n].shows.Store(true)
}

// wireSocket is one connection, from its handshake on.
type wireSocket struct {
	opened *wireLine
	path   string // below the sandbox
	query  url.Values
	id     string // of the session
	first  bool   // its process is started by it
	spec   core.PTYSpec
	frames []*wireLine
}

var sessionPath = regexp.MustCompile(`/pty/([^/]+)/ws$`)

// sockets are all connections.
func (l *wireLedger) sockets(t *testing.T) []*wireSocket {
	t.Helper()
	var all []*wireSocket
	for _, file := range []string{"lifecycle", "lifecycle_extra", "pty", "peer_trace"} {
		open := map[string]*wireSocket{}
		attached := map[string]bool{}
		specs := map[string]core.PTYSpec{}
		for _, one := range l.lines[file] {
			conn := one.Case + "/" + one.Conn
			if one.N > 0 {
				conn = strconv.Itoa(one.N)
			}
			switch {
			case one.Kind == "http" && strings.HasSuffix(one.URL, "/pty"):
				noteSpec(specs, one.ReqBody, one.body())
			case one.Kind == "req" && strings.HasSuffix(one.Path, "/pty"):
				for _, answer := range l.lines[file] {
					if body := one.body(); answer.Kind == "resp" && answer.N == one.N {
						noteSpec(specs, &body, answer.body())
					}
				}
			case one.Kind == "ws_handshake" || one.Kind == "ws_open":
				u, err := url.Parse(one.URL + one.Path)
				require.NoError(t, err)
				s := &wireSocket{opened: one, path: u.Path, query: u.Query()}
				if m := sessionPath.FindStringSubmatch(u.Path); m != nil {
					s.id = m[1]
				}
				if one.Kind == "ws_open" {
					one.Status = http.StatusSwitchingProtocols
				}
				s.first = one.Status == http.StatusSwitchingProtocols && !attached[s.id] && s.query.Get("takeover") == ""
				attached[s.id] = attached[s.id] || one.Status == http.StatusSwitchingProtocols
				s.spec = specs[s.id]
				s.spec.NoTerminal = s.query.Get("pty") == "0"
				open[conn] = s
				all = append(all, s)
			case strings.HasPrefix(one.Kind, "ws_"):
				require.NotNil(t, open[conn], one.key())
				open[conn].frames = append(open[conn].frames, one)
			}
		}
	}
	for _, s := range all {
		s.order(t)
		s.first = s.first && slices.ContainsFunc(s.frames, func(f *wireLine) bool { return f.greets() || strings.Contains(f.Text, "START_FAILED") })
	}
	return all
}

func noteSpec(specs map[string]core.PTYSpec, request *string, answer string) {
	var made struct {
		ID string `json:"session_id"`
	}
	var body struct{ Cwd, Command string }
	if request != nil {
		_ = json.Unmarshal([]byte(*request), &body) // some are wrong on purpose
	}
	if json.Unmarshal([]byte(answer), &made) == nil && made.ID != "" {
		specs[made.ID] = core.PTYSpec{Cwd: body.Cwd, Command: body.Command}
	}
}

func (l *wireLine) greets() bool { return strings.Contains(l.Text, `"connected"`) }

// order moves what the other client sent before it was greeted behind the greeting.
func (s *wireSocket) order(t *testing.T) {
	greeting := slices.IndexFunc(s.frames, (*wireLine).greets)
	var before, early []*wireLine
	for n, f := range s.frames {
		switch {
		case n < greeting && f.Dir == "c>s" && f.Kind == "ws_binary":
			differing(t, f.key(), "early")
			early = append(early, f)
		default:
			before = append(before, f)
			if n == greeting {
				before = append(before, early...)
			}
		}
	}
	s.frames = before
}

// content is the whole of a message. Of a long one, which repeats one byte, its ends were kept.
func (l *wireLine) content(t *testing.T) []byte {
	t.Helper()
	p, err := hex.DecodeString(l.Hex + l.HexHead)
	require.NoError(t, err)
	tail, err := hex.DecodeString(l.HexTail)
	require.NoError(t, err)
	if missing := l.Len - len(p) - len(tail); l.HexHead != "" && missing > 0 {
		p = append(append(p, bytes.Repeat(p[len(p)-1:], missing)...), tail...)
	}
	if l.Hex == "" && l.HexHead == "" {
		p = []byte(l.Text)
	}
	return p
}

// unsent tells of messages that our clients do not send, and in what way they differ.
func (l *wireLine) unsent() string {
	var c struct {
		Type, Signal string
		Rows, Cols   int
	}
	switch {
	case l.Dir != "c>s":
	case l.Kind == "ws_binary" && (l.Len == 0 || !strings.HasPrefix(l.Hex+l.HexHead, "00")):
		return "frame"
	case l.Kind != "ws_text":
	case json.Unmarshal([]byte(l.Text), &c) != nil:
		return "frame"
	case c.Type == "resize" && (c.Rows <= 0 || c.Cols <= 0):
		return "refused"
	case c.Type == "signal" && !slices.Contains([]string{"SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP"}, c.Signal):
		return "refused"
	case c.Type != "resize" && c.Type != "signal":
		return "frame"
	}
	return ""
}
