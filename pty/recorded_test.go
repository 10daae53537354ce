package pty

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// vital is one recording of what a server or daemon did on a socket on which nothing happened, or input every now and then: at
// which second it asked for a sign of life, and how it went on.
type vital struct {
	Case   string
	Frames [][]any // of a client that was read message by message
	Events [][]any // of one that was read byte by byte
}

// at is what happened, and when.
type vitalEvent struct {
	after time.Duration
	what  string
}

func (v vital) events(t *testing.T) []vitalEvent {
	t.Helper()
	var all []vitalEvent
	for _, e := range append(v.Frames, v.Events...) {
		require.GreaterOrEqual(t, len(e), 2)
		all = append(all, vitalEvent{time.Duration(e[0].(float64) * float64(time.Second)), e[1].(string)})
	}
	require.NotEmpty(t, all)
	return all
}

// pipes are connections that need no network: in them time passes only when nobody has anything to do.
type pipes struct {
	made chan net.Conn
	over chan struct{}
}

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	mine, theirs := net.Pipe()
	select {
	case p.made <- theirs:
		return mine, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.over:
		return nil, net.ErrClosed
	}
}

// Accept implements net.Listener.
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.made:
		return c, nil
	case <-p.over:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *pipes) Close() error { close(p.over); return nil }

// Addr implements net.Listener.
func (p *pipes) Addr() net.Addr { return &net.IPAddr{} }

// vitalServer plays a recording on the first socket. Those that come after it just go on.
type vitalServer struct {
	t      *testing.T
	events []vitalEvent
	dead   bool // after the last event it does not even answer

	mu      sync.Mutex
	back    time.Time // when the last socket was asked for
	sockets []string  // what was asked for
	looks   int       // how often the session was looked at
	pongs   int
	pings   int
	input   int
	failed  []string
}

func (s *vitalServer) note(what string, n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
	if what != "" {
		s.failed = append(s.failed, what)
	}
}

func (s *vitalServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"session_id":"s1"}`)
		return
	case !strings.HasSuffix(r.URL.Path, "/ws"):
		if r.Method == http.MethodGet {
			s.note("", &s.looks)
		}
		_, _ = io.WriteString(w, `{"session_id":"s1","running":true,"output_offset":2}`)
		return
	}
	c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	s.mu.Lock()
	s.sockets = append(s.sockets, r.URL.RawQuery)
	s.back = time.Now()
	first := len(s.sockets) == 1
	s.mu.Unlock()
	_ = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"connected","session_id":"s1","mode":"pty"}`))
	_ = c.WriteMessage(websocket.BinaryMessage, []byte("\x01$ "))
	c.SetPongHandler(func(string) error { s.note("", &s.pongs); return nil })
	silent := make(chan struct{})
	c.SetPingHandler(func(data string) error {
		s.note("", &s.pings)
		select {
		case <-silent:
			return nil
		default:
			return c.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(time.Second))
		}
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			kind, p, err := c.ReadMessage()
			if err != nil {
				return
			}
			if kind == websocket.BinaryMessage && len(p) > 1 && p[0] == 0 {
				s.note("", &s.input)
			}
		}
	}()
	if first {
		s.play(c, silent, ended)
	}
	<-ended
}

func (s *vitalServer) play(c *websocket.Conn, silent chan struct{}, ended <-chan struct{}) {
	begun := time.Now()
	for _, e := range s.events {
		select {
		case <-time.After(e.after - time.Since(begun)):
		case <-ended:
			s.note(fmt.Sprintf("the client left before %s at %s", e.what, e.after), &s.looks)
			return
		}
		switch e.what {
		case "PING":
			_ = c.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
		case "CLOSE":
			_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1011, "keepalive ping timeout"), time.Now().Add(time.Second))
			_ = c.Close()
		case "CLOSED", "EOF":
			_ = c.Close()
		case "STILL OPEN":
		default:
			s.note("nobody knows what "+e.what+" is", &s.looks)
		}
	}
	if s.dead {
		close(silent) // the connection stays, and nothing comes any more
	}
}

// Servers ask for signs of life and end sockets without them, and some that they can't keep. What they did was recorded; our
// side answers, and comes back to its session when a socket ends or goes silent, in the times that it has outside of tests.
func TestRecordedLivenessIsAnswered(t *testing.T) {
	f, err := os.Open("../providers/opensandbox/testdata/wire/ws_liveness.jsonl")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	seen := 0
	for lines := bufio.NewScanner(f); lines.Scan(); seen++ {
		var v vital
		require.NoError(t, json.Unmarshal(lines.Bytes(), &v))
		t.Run(v.Case, func(t *testing.T) {
			events := v.events(t)
			synctest.Test(t, func(t *testing.T) { replayVital(t, v, events) })
		})
	}
	assert.Equal(t, 9, seen)
}

func replayVital(t *testing.T, v vital, events []vitalEvent) {
	// Without a client's pongs the daemon let go of the session and kept the connection.
	s := &vitalServer{t: t, events: events, dead: v.Case == "direct_no_pong"}
	p := &pipes{made: make(chan net.Conn), over: make(chan struct{})}
	h := &http.Server{Handler: s}
	serving := make(chan struct{})
	go func() { defer close(serving); _ = h.Serve(p) }()
	defer func() {
		require.NoError(t, h.Close())
		<-serving
	}()
	c := &Client{URL: "http://box", Provider: "test", Dial: p.dial, RestartsEnded: true}
	session, err := c.Open(t.Context(), core.PTYSpec{})
	require.NoError(t, err)
	begun := time.Now()
	prompt, err := session.Read(t.Context())
	require.NoError(t, err)
	assert.Equal(t, "$ ", string(prompt))

	last := events[len(events)-1]
	sent := 0
	for time.Since(begun) < last.after+2*standard.silence {
		if strings.HasSuffix(v.Case, "traffic5s") {
			// Now and then at the very moment of a ping, which must not get lost for that.
			require.NoError(t, session.Write(t.Context(), []byte("x")))
			sent++
		}
		time.Sleep(5 * time.Second)
	}
	synctest.Wait()
	assert.False(t, session.Closed(), "the session goes on")
	require.NoError(t, session.Close(t.Context()))

	s.mu.Lock()
	defer s.mu.Unlock()
	assert.Empty(t, s.failed)
	pings := 0
	for _, e := range events {
		if e.what == "PING" {
			pings++
		}
	}
	assert.Equal(t, pings, s.pongs, "every sign of life that was asked for was given")
	assert.Positive(t, s.pings, "and asked for in turn")
	assert.Equal(t, sent, s.input)
	if last.what == "STILL OPEN" {
		assert.Equal(t, []string{""}, s.sockets, "nobody came back who had not gone")
		return
	}
	assert.Equal(t, []string{"", "takeover=1&since=2"}, s.sockets, "a socket that ended was replaced")
	assert.Equal(t, 1, s.looks, "after a look at the session")
	patience := time.Second
	if s.dead {
		patience += standard.silence
	}
	assert.WithinRange(t, s.back, begun.Add(last.after), begun.Add(last.after+patience))
}
