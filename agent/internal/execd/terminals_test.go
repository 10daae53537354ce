package execd

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// frame is one record of a recorded terminal session: a request, or what went over a connection in either direction.
type frame struct {
	exchange
	Conn    string
	Dir     string
	Text    string
	Hex     string
	HexHead string `json:"hex_head"`
	Len     int
	Code    int
	Reason  string
}

// terminalDifferences are where a terminal session goes on otherwise than recorded; what is listed is what comes instead.
var terminalDifferences = map[string]terminalDifference{
	"create_variants/10": {why: "the reason is told as for any body", body: "error parsing request"},
	"create_variants/13": {why: "one answer, not two in one body", body: codeRuntime},
	"create_variants/14": {why: "one answer, not two in one body", body: codeRuntime},
	"pty_basic/50":       {why: "an attach does not start the command again", text: `{"type":"exit","exit_code":7}`},
	"pty_basic/51":       {why: "an attach does not start the command again", body: `"running":false,"output_offset":334`},
	"pty_basic/52":       {why: "an attach does not start the command again", closed: websocket.CloseNormalClosure},
	"command_sessions/4": {why: "no output is lost at the end", output: "out\r\nerr\r\n", text: `{"type":"exit","exit_code":5}`},
	"start_failed/4":     {why: "the reason is told in other words", text: `"code":"START_FAILED"`},
	"start_failed/5":     {why: "a connection ends with a reason", closed: websocket.CloseInternalServerErr},
	"pty_basic/45":       {why: "the exit code stays known", body: `"running":false,"output_offset":334,"exit_code":7`},
	"pipe_mode/21":       {why: "the exit code stays known", body: `"running":false,"output_offset":36,"exit_code":9`},
	"signals/21":         {why: "the exit code stays known", body: `"running":false,"output_offset":33,"exit_code":-1`},
	"start_failed/6":     {why: "the exit code stays known", body: `"running":false,"output_offset":0,"exit_code":-1`},
}

type terminalDifference struct {
	why    string
	body   string // of an answer, a part
	text   string // of a message, a part
	output string // more of it
	closed int    // the code of the close message
}

// notReplayed are cases whose recording leaves out what one would have to send.
var notReplayed = map[string]string{
	"takeover_stalled_holder": "the holder's connection is not recorded; package ptyserver tests this",
}

// line is one client's connection.
type line struct {
	ws    *websocket.Conn
	pipes bool // of a session without a terminal

	mu      sync.Mutex
	changed *sync.Cond
	got     map[byte][]byte // output by channel
	texts   []string
	order   []string // of replay and texts, as they came
	pings   int
	closed  *websocket.CloseError
	over    bool

	want  map[byte][]byte
	asked int // texts that have been compared
}

func newLine(ws *websocket.Conn, pipes bool) *line {
	l := &line{ws: ws, pipes: pipes, got: map[byte][]byte{}, want: map[byte][]byte{}}
	l.changed = sync.NewCond(&l.mu)
	answer := ws.PingHandler()
	ws.SetPingHandler(func(data string) error {
		l.mu.Lock()
		l.pings++
		l.changed.Broadcast()
		l.mu.Unlock()
		return answer(data)
	})
	go l.read()
	return l
}

// read ends with the connection.
func (l *line) read() {
	for {
		kind, p, err := l.ws.ReadMessage()
		l.mu.Lock()
		switch {
		case err != nil:
			l.over = true
			if e, ok := err.(*websocket.CloseError); ok {
				l.closed = e
			}
		case kind == websocket.TextMessage:
			l.texts = append(l.texts, string(p))
			l.order = append(l.order, "text")
		case len(p) > 0:
			l.got[p[0]] = append(l.got[p[0]], p[1:]...)
			if p[0] == 3 {
				l.order = append(l.order, "replay")
			}
		}
		l.changed.Broadcast()
		l.mu.Unlock()
		if err != nil {
			_ = l.ws.Close()
			return
		}
	}
}

// until waits for something to be true.
func (l *line) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	late := time.AfterFunc(45*time.Second, func() { l.mu.Lock(); l.over = true; l.changed.Broadcast(); l.mu.Unlock() })
	defer late.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !is() {
		if l.over {
			require.True(t, is(), "%s: got %q, texts %q, close %v", what, l.got, l.texts, l.closed)
			return
		}
		l.changed.Wait()
	}
}

func TestEveryRecordedTerminalSessionGoesOnAsRecorded(t *testing.T) {
	t.Parallel()
	cases := map[string][]frame{}
	for _, f := range readLines[frame](t, "testdata/pty.jsonl") {
		cases[f.Case] = append(cases[f.Case], f)
	}
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "PS1=# "}
	open := startDaemon(t, env, contained(t)...)
	guarded := startDaemon(t, append(env, varToken+"=sekret"), contained(t)...)
	used := &usedDifferences{keys: map[string]bool{}}
	t.Run("cases", func(t *testing.T) {
		for name, frames := range cases {
			if notReplayed[name] != "" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				p := &play{replay: replay{ids: map[string]string{}}, lines: map[string]*line{}, used: used}
				for _, f := range frames {
					p.daemon = &daemon{t: t, base: open.base}
					if f.Auth {
						p.daemon.base = guarded.base
					}
					p.frame(t, f)
					if t.Failed() {
						return
					}
				}
				p.finish(t)
			})
		}
	})
	for key := range terminalDifferences {
		require.True(t, used.keys[key], "the difference at %s does not show: take it out of the table", key)
	}
}

// play replays one case.
type play struct {
	replay
	lines map[string]*line
	used  *usedDifferences
}

func (p *play) frame(t *testing.T, f frame) {
	at := fmt.Sprintf("%s/%d", f.Case, f.Seq)
	d, differs := terminalDifferences[at]
	if differs {
		p.used.mu.Lock()
		p.used.keys[at] = true
		p.used.mu.Unlock()
	}
	path := f.URL
	for from, to := range p.ids {
		path = strings.ReplaceAll(path, from, to)
	}
	if f.Kind == "http" {
		p.http(t, at, f.exchange, path, d)
		return
	}
	if f.Kind == "ws_handshake" {
		p.dial(t, at, f, path)
		return
	}
	l := p.lines[f.Conn]
	require.NotNil(t, l, at)
	if f.Dir == "c>s" {
		l.send(t, at, f, d)
		return
	}
	switch f.Kind {
	case "ws_ping":
		l.until(t, at, func() bool { return l.pings > 0 })
	case "ws_close", "ws_eof":
		l.until(t, at, func() bool { return l.closed != nil })
		code := f.Code
		if differs {
			code = d.closed
		}
		require.Equal(t, code, l.closed.Code, at)
		if !differs {
			require.Equal(t, f.Reason, l.closed.Text, at)
		}
	default:
		l.receive(t, at, f, d, p.ids)
	}
}

// http sends a request until its answer is the recorded one: processes need their time.
func (p *play) http(t *testing.T, at string, e exchange, path string, d terminalDifference) {
	t.Helper()
	status, answer, _ := p.send(e, path, e.Request)
	right := func() bool {
		if d.why != "" {
			return status == e.Status && strings.Contains(answer, d.body)
		}
		return status == e.Status && p.same(e, answer) == nil
	}
	for until := time.Now().Add(10 * time.Second); !right() && e.Method == http.MethodGet && time.Now().Before(until); {
		time.Sleep(10 * time.Millisecond)
		status, answer, _ = p.send(e, path, e.Request)
	}
	require.Equal(t, e.Status, status, "%s: %s", at, brief(answer))
	if d.why != "" {
		require.Contains(t, answer, d.body, at)
		require.Error(t, p.same(e, answer), "%s does not differ", at)
	} else {
		require.NoError(t, p.same(e, answer), at)
	}
	p.learn(e, answer)
}

func (p *play) dial(t *testing.T, at string, f frame, path string) {
	t.Helper()
	h := http.Header{}
	if f.Auth && f.Status == http.StatusSwitchingProtocols {
		h.Set(tokenHeader, "sekret")
	}
	ws, res, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(p.daemon.base, "http")+path, h)
	for until := time.Now().Add(5 * time.Second); err != nil && res != nil && f.Status == http.StatusSwitchingProtocols && res.StatusCode == http.StatusConflict && time.Now().Before(until); {
		// A client that has just closed its connection holds the session for a moment yet.
		time.Sleep(10 * time.Millisecond)
		ws, res, err = websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(p.daemon.base, "http")+path, h)
	}
	if res != nil {
		require.Equal(t, f.Status, res.StatusCode, at)
	}
	if f.Status != http.StatusSwitchingProtocols {
		require.Error(t, err, at)
		return
	}
	require.NoError(t, err, at)
	if old := p.lines[f.Conn]; old != nil {
		old.check(t, at)
	}
	p.lines[f.Conn] = newLine(ws, f.Case == "pipe_mode")
	t.Cleanup(func() { _ = ws.Close() })
}

// send is the client's part.
func (l *line) send(t *testing.T, at string, f frame, d terminalDifference) {
	t.Helper()
	switch f.Kind {
	case "ws_close":
		if d.closed != 0 {
			l.until(t, at, func() bool { return l.closed != nil })
			require.Equal(t, d.closed, l.closed.Code)
			return
		}
		_ = l.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(f.Code, f.Reason), time.Now().Add(time.Second))
		l.until(t, at, func() bool { return l.over })
	case "ws_pong": // has been sent by itself
	case "ws_text":
		if f.Case == "signals" && f.Conn == "A" {
			untilIdle(t)
		} else if f.Case == "signals" {
			untilRuns(t, "sleep 30") // a shell that starts has its own way with signals
		}
		require.NoError(t, l.ws.WriteMessage(websocket.TextMessage, []byte(f.Text)), at)
	default:
		if at == "pty_basic/35" {
			untilRuns(t, "sleep 100") // the shell would take the interrupt
		}
		p, err := hex.DecodeString(f.Hex + f.HexHead)
		require.NoError(t, err)
		if n := len(p); n < f.Len {
			p = append(p, bytes.Repeat(p[n-1:], f.Len-n)...) // the recording is cut
		}
		require.NoError(t, l.ws.WriteMessage(websocket.BinaryMessage, p), at)
	}
}

// untilIdle waits until no interactive shell does anything: one that has just
// shown its prompt does not react to an interrupt as one that waits for input.
func untilIdle(t *testing.T) {
	t.Helper()
	last := ""
	require.Eventually(t, func() bool {
		now := ""
		found, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		for _, name := range found {
			line, err := os.ReadFile(name)
			if err != nil || string(line) != "bash\x00--norc\x00--noprofile\x00" {
				continue
			}
			call, err := os.ReadFile(filepath.Join(filepath.Dir(name), "syscall"))
			if err != nil || strings.HasPrefix(string(call), "running") {
				now = ""
				break
			}
			now += string(call)
		}
		idle := now != "" && now == last
		last = now
		return idle
	}, 10*time.Second, 20*time.Millisecond)
}

// untilRuns waits until there is a process with that command line.
func untilRuns(t *testing.T, command string) {
	t.Helper()
	require.Eventually(t, func() bool {
		found, err := filepath.Glob("/proc/[0-9]*/cmdline")
		require.NoError(t, err)
		return slices.ContainsFunc(found, func(name string) bool {
			line, err := os.ReadFile(name)
			return err == nil && string(line) == strings.ReplaceAll(command, " ", "\x00")+"\x00"
		})
	}, 10*time.Second, 5*time.Millisecond)
}

var terminalName = regexp.MustCompile(`/dev/pts/\d`)

// receive waits for one message that was recorded. How output is cut into messages is not compared.
func (l *line) receive(t *testing.T, at string, f frame, d terminalDifference, ids map[string]string) {
	t.Helper()
	if f.Kind == "ws_text" || d.text != "" {
		l.until(t, at, func() bool { return len(l.texts) > l.asked })
		l.mu.Lock()
		want, got := strings.TrimSuffix(f.Text, "\n"), l.texts[l.asked]
		l.asked++
		l.mu.Unlock()
		for from, to := range ids {
			want = strings.ReplaceAll(want, from, to)
		}
		l.want[1] = append(l.want[1], d.output...)
		if d.text != "" {
			require.Contains(t, got, d.text, at)
			return
		}
		require.Equal(t, want+"\n", got, at)
		return
	}
	p, err := hex.DecodeString(f.Hex + f.HexHead)
	require.NoError(t, err)
	channel, body := p[0], p[1:]
	if f.HexHead != "" {
		// A long replay is recorded by its head and its length.
		l.until(t, at, func() bool { return len(l.got[channel]) >= f.Len-1 })
		l.mu.Lock()
		defer l.mu.Unlock()
		require.Equal(t, f.Len-1, len(l.got[channel]), at)
		require.True(t, bytes.HasPrefix(l.got[channel], body), at)
		l.want[channel] = l.got[channel]
		return
	}
	l.want[channel] = append(l.want[channel], body...)
	n := len(l.want[channel])
	l.until(t, at, func() bool { return len(l.got[channel]) >= n })
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Equal(t, l.comparable(channel, l.want[channel]), l.comparable(channel, l.got[channel][:n]), at)
}

// comparable is output without what differs from run to run: the number of the terminal, and without
// a terminal the order of stdout and stderr, which are two pipes.
func (l *line) comparable(channel byte, p []byte) string {
	s := terminalName.ReplaceAllString(string(p), "/dev/pts/N")
	if channel == 3 && l.pipes && len(p) >= 8 {
		words := strings.SplitAfter(s[8:], "\n")
		slices.Sort(words)
		return s[:8] + strings.Join(words, "")
	}
	return s
}

// check compares all that has come: nothing is missing, and nothing came on top.
func (l *line) check(t *testing.T, at string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for channel := range l.got {
		require.Equal(t, l.comparable(channel, l.want[channel]), l.comparable(channel, l.got[channel]), at)
	}
	require.Len(t, l.texts, l.asked, "%s: %q", at, l.texts)
	if len(l.got[3]) > 0 {
		require.Equal(t, "replay", l.order[0], "%s: the replay comes before everything else", at)
	}
}

func (p *play) finish(t *testing.T) {
	for name, l := range p.lines {
		_ = l.ws.Close()
		l.until(t, name, func() bool { return l.over })
		l.check(t, name)
	}
}
