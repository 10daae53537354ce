package opensandbox

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Every socket that was recorded is opened, used and left with the operations of sessions: what they send is what was recorded, and
// what the server sends is understood.
func replaySockets(t *testing.T, ledger *wireLedger) {
	for _, s := range ledger.sockets(t) {
		ok := t.Run(s.opened.key(), func(t *testing.T) { s.replay(t) })
		if ok {
			ledger.use("socket", append(s.frames, s.opened)...)
		}
	}
	for _, d := range socketDifferences {
		assert.True(t, d.shows.Load(), "the difference at %s %s does not show: take it out of the table", d.at, d.part)
	}
}

func (s *wireSocket) replay(t *testing.T) {
	server := &socketServer{wireSocket: s, t: t, query: make(chan string, 1), wrong: make(chan string, 100), ponged: make(chan struct{}, 10), done: make(chan struct{})}
	if s.opened.Case == "auth" && s.opened.Status == http.StatusSwitchingProtocols {
		server.token = "sekret"
	}
	h := httptest.NewServer(server)
	t.Cleanup(h.Close)
	i := socketInstance(t, h.URL)
	at := endpoint{url: h.URL + strings.TrimSuffix(s.path, "/pty/"+s.id+"/ws"), header: http.Header{}}
	if server.token != "" {
		at.header.Set(headerToken, server.token)
	}
	i.at = &at
	ctx, cancel := context.WithTimeout(t.Context(), wireSoon)
	defer cancel()
	c, err := i.terminals(ctx, "pty")
	require.NoError(t, err)
	var session core.PTYSession
	if s.first {
		session, err = opened(c.Open(ctx, s.spec))
	} else {
		since, _ := strconv.ParseInt(s.query.Get("since"), 10, 64) // some are none on purpose
		id := s.id
		if id == "" {
			id = "none"
		}
		session, err = opened(c.Attach(ctx, id, s.query.Get("takeover") == "1", max(since, 0)))
	}
	s.asked(t, server)
	if session == nil {
		s.refusal(t, err)
	} else {
		require.NoError(t, err)
		s.use(ctx, t, session, server.ponged)
		require.NoError(t, session.Close(ctx))
	}
	select {
	case <-server.done:
	case <-ctx.Done():
		t.Error("the socket was not played to its end")
	}
	close(server.wrong)
	for wrong := range server.wrong {
		t.Error(wrong)
	}
}

// asked compares the handshake with the recorded one.
func (s *wireSocket) asked(t *testing.T, server *socketServer) {
	t.Helper()
	var target string
	select {
	case target = <-server.query:
		server.query <- target // taken
	default:
		require.Fail(t, "no socket was asked for")
	}
	u, err := url.Parse(target)
	require.NoError(t, err)
	if u.Path != s.path {
		differing(t, s.opened.key(), "path")
	}
	want := url.Values{}
	for k, v := range s.query {
		n, err := strconv.Atoi(v[0])
		switch {
		case k == "pty" && v[0] == "1":
			differing(t, s.opened.key(), "pty=1")
		case k == "since" && v[0] == "0":
			differing(t, s.opened.key(), "since=0")
		case k == "since" && (err != nil || n < 0):
			differing(t, s.opened.key(), "since")
		default:
			want[k] = v
		}
	}
	assert.Equal(t, want, u.Query())
}

// refusal checks why a session could not be opened.
func (s *wireSocket) refusal(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	var want string
	for _, f := range s.frames {
		switch {
		case strings.Contains(f.Text, "START_FAILED"):
			want = "START_FAILED"
		case f.Code != nil && *f.Code == websocket.ClosePolicyViolation:
			want = "already has an attached client"
		case f.Code != nil && want == "":
			want = fmt.Sprintf("close code %d", *f.Code)
		}
	}
	switch s.opened.Status {
	case http.StatusConflict:
		want = "already has an attached client"
	case http.StatusNotFound:
		want = "not found"
	case http.StatusUnauthorized:
		want = "HTTP 401"
	}
	require.NotEmpty(t, want)
	assert.ErrorContains(t, err, want)
}

// use goes through a socket's messages with the operations of its session.
func (s *wireSocket) use(ctx context.Context, t *testing.T, session core.PTYSession, ponged <-chan struct{}) {
	t.Helper()
	assert.Equal(t, s.id, session.SessionID())
	var out reader
	for _, f := range s.frames {
		p := f.content(t)
		closing := f.Kind == "ws_close" || f.Kind == "ws_eof"
		switch part := f.unsent(); {
		case part != "":
			differing(t, f.key(), part)
			if part == "refused" {
				assert.Equal(t, core.KindInvalid, core.KindOf(s.send(ctx, session, f)))
			}
		case f.greets():
			assert.Contains(t, f.Text, `"mode":"`+session.Mode()+`"`)
		case f.Dir == "c>s" && closing:
			out.await(ctx, t, session)
			require.NoError(t, session.Detach())
			return
		case f.Dir == "c>s" && f.Kind != "ws_pong":
			out.await(ctx, t, session)
			require.NoError(t, s.send(ctx, session, f), f.key())
		case f.Dir == "c>s":
			select {
			case <-ponged:
			case <-ctx.Done():
				t.Error("a ping was not answered")
			}
		case f.Kind == "ws_binary" && p[0] == 3:
			out.stdout += string(p[9:])
			at, ok := session.ReplayOffset()
			assert.True(t, ok)
			assert.Equal(t, hex.EncodeToString(p[1:9]), fmt.Sprintf("%016x", at))
		case f.Kind == "ws_binary" && p[0] == 2:
			out.stderr += string(p[1:])
		case f.Kind == "ws_binary":
			out.stdout += string(p[1:])
		case strings.Contains(f.Text, `"exit"`):
			var exit struct {
				ExitCode int `json:"exit_code"`
			}
			require.NoError(t, json.Unmarshal([]byte(f.Text), &exit))
			out.await(ctx, t, session)
			code, err := session.WaitExit(ctx)
			require.NoError(t, err)
			assert.Equal(t, exit.ExitCode, code)
			_, err = session.Read(ctx)
			require.ErrorIs(t, err, io.EOF)
			return // what comes behind the exit is lost, see the measurements
		case closing && *f.Code == 4001:
			out.await(ctx, t, session)
			_, err := session.Read(ctx)
			require.ErrorContains(t, err, "taken over")
			return
		}
	}
}

// send makes a recorded message again.
func (s *wireSocket) send(ctx context.Context, session core.PTYSession, f *wireLine) error {
	if f.Kind == "ws_binary" {
		p, err := hex.DecodeString(f.Hex + f.HexHead)
		if err != nil {
			return err
		}
		if missing := f.Len - len(p); missing > 0 {
			p = append(p, bytes.Repeat(p[len(p)-1:], missing)...)
		}
		return session.Write(ctx, p[1:])
	}
	var c struct {
		Type, Signal string
		Rows, Cols   int
	}
	if err := json.Unmarshal([]byte(f.Text), &c); err != nil {
		return err
	}
	if c.Type == "signal" {
		return session.Signal(ctx, c.Signal)
	}
	return session.Resize(ctx, c.Rows, c.Cols)
}

// reader takes output up to what has been recorded so far.
type reader struct{ stdout, stderr string }

func (r *reader) await(ctx context.Context, t *testing.T, session core.PTYSession) {
	t.Helper()
	take := func(want *string, read func(context.Context) ([]byte, error)) {
		var got strings.Builder
		for got.Len() < len(*want) {
			p, err := read(ctx)
			require.NoError(t, err)
			got.Write(p)
		}
		assert.True(t, *want == got.String(), "%.300q instead of %.300q", got.String(), *want)
		*want = ""
	}
	take(&r.stdout, session.Read)
	take(&r.stderr, session.ReadStderr)
}
