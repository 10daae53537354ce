package opensandbox

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// elsewhere are recordings that other packages replay, and the files with which they do.
var elsewhere = map[string]struct{ file, says string }{
	"ws_liveness":   {"../../pty/recorded_test.go", "ws_liveness.jsonl"},
	"execd:metrics": {"../../agent/internal/execd/recorded_test.go", `e.Case == "metrics"`},
}

func replayedElsewhere(t *testing.T, ledger *wireLedger) {
	for what, at := range elsewhere {
		p, err := os.ReadFile(at.file)
		require.NoError(t, err)
		require.Contains(t, string(p), at.says)
		file, only, _ := strings.Cut(what, ":")
		for _, one := range ledger.lines[file] {
			if only == "" || one.Case == only {
				ledger.use("elsewhere", one)
			}
		}
	}
}

// What was recorded of the daemon is replayed against the project's own too: there it has its own files.
func TestDaemonsSideOfTheRecordingsIsComplete(t *testing.T) {
	ledger := readWire(t)
	for _, file := range []string{"execd", "pty"} {
		p, err := os.ReadFile("../../agent/internal/execd/testdata/" + file + ".jsonl")
		require.NoError(t, err)
		there := map[string]bool{}
		for line := range strings.Lines(string(p)) {
			var one wireLine
			require.NoError(t, json.Unmarshal([]byte(line), &one))
			one.File = file
			there[one.key()] = true
		}
		for _, one := range ledger.lines[file] {
			if one.Kind != "case" && one.Kind != "note" {
				assert.True(t, there[one.key()], "%s is missing there", one.key())
			}
		}
	}
}

// A daemon that does not listen yet is waited for: what the server says of it meanwhile was recorded, and that it takes a moment only.
func replayReadiness(t *testing.T, ledger *wireLedger) {
	var refusal string
	var used []*wireLine
	for _, one := range ledger.lines["lifecycle_extra"] {
		switch {
		case one.What == "ping before execd listens":
			refusal = one.body()
			used = append(used, one)
		case one.Case == "ready_gap":
			used = append(used, one)
		}
	}
	require.Len(t, used, 3)
	var mu sync.Mutex
	pings := 0
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if !strings.HasSuffix(r.URL.Path, "/ping") {
			http.NotFound(w, r)
			return
		}
		if pings++; pings == 1 {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, refusal)
		}
	}))
	t.Cleanup(h.Close)
	i := socketInstance(t, h.URL)
	ctx, cancel := context.WithTimeout(t.Context(), wireSoon)
	defer cancel()
	err := i.ping(ctx)
	assert.Equal(t, codeNotReached, codeOf(err), "%v", err)
	mu.Lock()
	pings = 0
	mu.Unlock()
	require.NoError(t, i.awaitDaemon(ctx, time.Millisecond))
	assert.Equal(t, 2, pings)
	ledger.use("readiness", used...)
}

func socketInstance(t *testing.T, url string) *instance {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"connection": map[string]any{"domain": url, "api_key": "lab-key", "use_server_proxy": true, "request_timeout_s": 20}})
	require.NoError(t, err)
	p, err := newProvider(raw)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(context.Background())) })
	i := p.newInstance("box")
	i.starting.Store(true)
	t.Cleanup(i.Detach)
	i.at = &endpoint{url: url, header: http.Header{}}
	return i
}

// An error of the server is told, also one that was provoked by a message that we do not send.
func replayServerErrors(t *testing.T, ledger *wireLedger) {
	seen := 0
	for _, one := range ledger.lines["pty"] {
		if !strings.Contains(one.Text, "INVALID_FRAME") {
			continue
		}
		seen++
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/ws") {
				_, _ = io.WriteString(w, `{"session_id":"s1","running":true,"output_offset":0}`)
				return
			}
			c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			_ = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"connected","session_id":"s1","mode":"pty"}`))
			_ = c.WriteMessage(websocket.TextMessage, []byte(one.Text))
			_, _, _ = c.ReadMessage()
		}))
		t.Cleanup(h.Close)
		i := socketInstance(t, h.URL)
		ctx, cancel := context.WithTimeout(t.Context(), wireSoon)
		defer cancel()
		s, err := i.AttachPTY(ctx, "s1", false, 0)
		require.NoError(t, err)
		_, err = s.Read(ctx)
		assert.ErrorContains(t, err, "INVALID_FRAME")
		assert.Equal(t, core.KindPTY, core.KindOf(err))
		require.NoError(t, s.Close(ctx))
		ledger.use("error", one)
	}
	assert.Positive(t, seen)
}

// hasty is a daemon that does what the recorded one was measured to do: it tells a process's end at once, and
// forgets the output that it has not read by then. Commands are run for real.
type hasty struct {
	t       *testing.T
	command string
}

func (h *hasty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/ws"):
		h.run(w, r)
	case r.Method == http.MethodPost:
		var body struct{ Command string }
		if json.NewDecoder(r.Body).Decode(&body) == nil {
			h.command = body.Command
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"session_id":"s1"}`)
	case r.URL.Path == "/directories" && strings.HasPrefix(r.URL.Query().Get("path"), "/tmp/.nemo-gym-"):
		assert.NoError(h.t, os.Remove(r.URL.Query().Get("path")))
	}
}

func (h *hasty) run(w http.ResponseWriter, r *http.Request) {
	c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	from, to, err := os.Pipe()
	if !assert.NoError(h.t, err) {
		return
	}
	defer func() { _ = from.Close() }()
	_ = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"connected","session_id":"s1","mode":"pipe"}`))
	cmd := exec.CommandContext(h.t.Context(), "bash", "--norc", "--noprofile", "-c", h.command)
	cmd.Stdout = to
	if !assert.NoError(h.t, cmd.Start()) {
		return
	}
	_ = to.Close()
	over := make(chan struct{})
	go func() { defer close(over); _ = cmd.Wait() }()
	buf := make([]byte, 1<<20)
	for late := time.NewTicker(10 * time.Millisecond); ; {
		select {
		case <-over: // what has not been read is forgotten
			late.Stop()
			_ = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"exit","exit_code":0}`))
			_, _, _ = c.ReadMessage()
			return
		case <-late.C:
			// As much as there is: a pipe holds less than this.
			_ = from.SetReadDeadline(time.Now().Add(time.Millisecond))
			if n, _ := from.Read(buf); n > 0 {
				_ = c.WriteMessage(websocket.BinaryMessage, append([]byte{1}, buf[:n]...))
			}
		}
	}
}

// What was measured of lost output: it is lost where a process ends with its last output, and not where it outlives
// that for a moment. The commands that we send do.
func replayTailLoss(t *testing.T, ledger *wireLedger) {
	lost, certain := 0, 0
	for _, file := range []string{"pty", "pty_tail_loss"} {
		for _, one := range ledger.lines[file] {
			if one.Case != "tail_loss" || one.Runs == 0 {
				continue
			}
			t.Run(one.key(), func(t *testing.T) {
				h := httptest.NewServer(&hasty{t: t})
				t.Cleanup(h.Close)
				i := socketInstance(t, h.URL)
				ctx, cancel := context.WithTimeout(t.Context(), wireSoon)
				defer cancel()
				spec := core.PTYSpec{Command: "head -c " + strconv.Itoa(one.Size) + " /dev/zero | tr '\\0' x" + one.Suffix, NoTerminal: one.Mode == "pipe"}
				c, err := i.terminals(ctx, "pty")
				require.NoError(t, err)
				bare, err := c.Open(ctx, spec)
				require.NoError(t, err)
				got := drained(ctx, t, bare)
				if one.Suffix == "" {
					certain++
					lost += one.Size - got
					whole, err := i.OpenPTY(ctx, spec)
					require.NoError(t, err)
					got = drained(ctx, t, whole)
				}
				assert.Equal(t, one.Size, got)
			})
			ledger.use("tail", one)
		}
	}
	assert.Equal(t, 12, certain)
	assert.Positive(t, lost, "nothing is shown where nothing would be lost")
}

func drained(ctx context.Context, t *testing.T, s core.PTYSession) int {
	t.Helper()
	n := 0
	for {
		p, err := s.Read(ctx)
		if err != nil {
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, s.Close(ctx))
			return n
		}
		n += len(p)
	}
}
