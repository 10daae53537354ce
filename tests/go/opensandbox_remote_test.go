package tests

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/opensandbox"
	standin "github.com/nemo-gym/nemo_gym_sandbox/tests/standins/opensandbox"
)

// While a sandbox comes up its proxy answers for it. What that says may pass, unless it is about the caller.
func TestOpenSandboxProxyAnswersWhileTheSandboxComesUp(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, settings{"probe": settings{"command": nil}}, core.Spec{})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	server.Fail(standin.Fault{Method: http.MethodPost, Path: "/command", Status: http.StatusBadGateway, Times: 2})
	res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "echo up"})
	assert.Equal(t, "up", stdout, res.Reason)
	assert.Len(t, server.Requests(http.MethodPost, "/command"), 3)

	for _, status := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusNotFound} {
		server.Fail(standin.Fault{Method: http.MethodPost, Path: "/pty", Status: status, Times: 2})
		server.Fail(standin.Fault{Method: http.MethodGet, Path: "/pty/", Status: http.StatusBadGateway, Times: 2})
		before := len(server.Requests(http.MethodPost, "/pty"))
		session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "echo up; exit 3", NoTerminal: true})
		require.NoError(t, err, status)
		p, err := session.Read(ctx)
		require.NoError(t, err)
		assert.Equal(t, "up\n", string(p))
		require.NoError(t, session.Close(ctx))
		assert.Len(t, server.Requests(http.MethodPost, "/pty"), before+3)
	}

	// Credentials do not become right by waiting.
	server.Fail(standin.Fault{Method: http.MethodPost, Path: "/command", Status: http.StatusUnauthorized, Times: 9})
	before := len(server.Requests(http.MethodPost, "/command"))
	_, err := s.Exec(ctx, core.ExecRequest{Command: "true"}, core.Discard)
	assert.Equal(t, core.KindAuth, core.KindOf(err), "%v", err)
	assert.ErrorContains(t, err, "HTTP 401")
	assert.Len(t, server.Requests(http.MethodPost, "/command"), before+1)
	server.Fail(standin.Fault{Method: http.MethodPost, Path: "/pty", Status: http.StatusUnauthorized, Times: 9})
	before = len(server.Requests(http.MethodPost, "/pty"))
	_, err = s.OpenPTY(ctx, core.PTYSpec{})
	assert.ErrorContains(t, err, "HTTP 401")
	assert.Len(t, server.Requests(http.MethodPost, "/pty"), before+1)

	other := startStandin(t)
	s = osbBox(t, other, nil, core.Spec{})
	other.Fail(standin.Fault{Method: http.MethodGet, Path: "/pty/", Status: http.StatusUnauthorized, Times: 9})
	_, err = s.OpenPTY(ctx, core.PTYSpec{})
	assert.ErrorContains(t, err, "HTTP 401")
	assert.Len(t, other.Requests(http.MethodGet, "/pty/"), 1)
	assert.Len(t, other.Requests(http.MethodDelete, "/pty/"), 1, "the session that could not be attached to is not left")
}

// A gateway may want the credentials at the upgrade too, and send whoever has none to a login.
func TestOpenSandboxUpgradeCarriesTheCredentials(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "echo x", NoTerminal: true})
	require.NoError(t, err)
	require.NoError(t, session.Close(ctx))
	upgrades := 0
	for _, r := range server.Requests(http.MethodGet, "/pty/"+session.SessionID()+"/ws") {
		upgrades++
		assert.Equal(t, standin.Key, r.Header.Get("OPEN-SANDBOX-API-KEY"))
	}
	assert.Equal(t, 1, upgrades)

	server.Fail(standin.Fault{Method: http.MethodGet, Path: "/pty/", Status: http.StatusTemporaryRedirect, Header: map[string]string{"Location": "https://login.invalid/"}, Times: 9})
	_, err = s.OpenPTY(ctx, core.PTYSpec{Command: "echo x", NoTerminal: true})
	assert.Equal(t, core.KindPTY, core.KindOf(err), "%v", err)
	assert.ErrorContains(t, err, "HTTP 307")
	server.Fail(standin.Fault{Method: http.MethodPost, Path: "/command", Status: http.StatusTemporaryRedirect, Header: map[string]string{"Location": "https://login.invalid/"}, Times: 9})
	res, _, _ := osbRun(t, s, core.ExecRequest{Command: "true"})
	assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
	assert.Contains(t, res.Reason, "HTTP 307")
}

// puppet is a server with one sandbox, whose daemon's terminal says what a test wants.
type puppet struct {
	*httptest.Server
	play   func(c *websocket.Conn)
	refuse int // the status of refused upgrades

	mu       sync.Mutex
	requests []string
	conns    map[string]int // requests per connection
}

func newPuppet(t *testing.T, play func(c *websocket.Conn)) *puppet {
	p := &puppet{play: play, conns: map[string]int{}}
	p.Server = httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(func() {
		p.CloseClientConnections()
		p.Close()
	})
	return p
}

func (p *puppet) serve(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if _, rest, ok := strings.Cut(path, "/proxy/44772"); ok {
		path = rest
	}
	p.mu.Lock()
	p.requests = append(p.requests, r.Method+" "+path)
	p.conns[r.RemoteAddr]++
	count := p.conns[r.RemoteAddr]
	p.mu.Unlock()
	switch {
	case strings.Contains(path, "/endpoints/"):
		_, _ = fmt.Fprintf(w, `{"endpoint":"%s/v1/sandboxes/box/proxy/44772"}`, r.Host)
	case strings.HasPrefix(path, "/v1/"):
		_, _ = fmt.Fprint(w, `{"id":"box","status":{"state":"Running"}}`)
	case strings.HasPrefix(path, "/files/"):
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodPost && path == "/pty":
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, `{"session_id":"s1"}`)
	case path == "/pty/s1/ws" && p.refuse != 0 && p.refuse != http.StatusSwitchingProtocols:
		w.WriteHeader(p.refuse)
		_, _ = fmt.Fprintf(w, `{"code":"%s","message":"no"}`, map[int]string{409: "ALREADY_CONNECTED", 404: "CONTEXT_NOT_FOUND"}[p.refuse])
	case path == "/pty/s1/ws":
		if count > 1 {
			return // as servers that drop such a socket later
		}
		c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		if err == nil {
			p.play(c)
			_ = c.Close()
		}
	case r.Method == http.MethodGet && path == "/pty/s1":
		_, _ = fmt.Fprint(w, `{"session_id":"s1","running":true,"output_offset":0}`)
	}
}

func (p *puppet) sandbox(t *testing.T) *core.Sandbox {
	raw, err := json.Marshal(settings{"connection": settings{"domain": p.URL, "api_key": "k", "use_server_proxy": true}})
	require.NoError(t, err)
	provider, err := opensandbox.New(raw)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	s, err := core.Connect(ctx, provider, map[string]any{"sandbox_id": "box"})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, s.Disconnect())
		assert.NoError(t, provider.Close(context.Background()))
	})
	return s
}

// A server may send megabytes as one message, or each byte as one.
func TestOpenSandboxTerminalTakesMessagesOfAnySize(t *testing.T) {
	const big, small = 8 << 20, 100_000
	p := newPuppet(t, func(c *websocket.Conn) {
		frame := make([]byte, 9, 9+big)
		frame[0] = 3
		binary.BigEndian.PutUint64(frame[1:], 0)
		frame = append(frame, bytes.Repeat([]byte("12345678"), big/8)...)
		_ = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"connected","session_id":"s1","mode":"pty"}`+"\n"))
		_ = c.WriteMessage(websocket.BinaryMessage, frame)
		for n := range small {
			_ = c.WriteMessage(websocket.BinaryMessage, []byte{1, byte('a' + n%26)})
		}
		_ = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"exit","exit_code":5}`))
		_, _, _ = c.ReadMessage()
	})
	s := p.sandbox(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*osbSoon)
	defer cancel()
	session, err := s.OpenPTY(ctx, core.PTYSpec{})
	require.NoError(t, err)
	defer func() { assert.NoError(t, session.Close(ctx)) }()
	got, want := sha1.New(), sha1.New()
	for range big / 8 {
		want.Write([]byte("12345678"))
	}
	for n := range small {
		want.Write([]byte{byte('a' + n%26)})
	}
	total := 0
	for {
		out, err := session.Read(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		total += len(out)
		assert.LessOrEqual(t, len(out), 1<<20, "a message is not kept as a whole")
		got.Write(out)
	}
	assert.Equal(t, big+small, total)
	assert.Equal(t, base64.StdEncoding.EncodeToString(want.Sum(nil)), base64.StdEncoding.EncodeToString(got.Sum(nil)))
	code, err := session.WaitExit(ctx)
	require.NoError(t, err)
	assert.Equal(t, 5, code)
}

// Servers drop a socket after a while that came to be on a connection which had carried other requests.
func TestOpenSandboxSocketHasItsOwnConnection(t *testing.T) {
	var greeted atomic.Int64
	p := newPuppet(t, func(c *websocket.Conn) {
		greeted.Add(1)
		_ = c.WriteMessage(websocket.TextMessage, []byte(`{"type":"connected","session_id":"s1","mode":"pty"}`))
		_, _, _ = c.ReadMessage()
	})
	s := p.sandbox(t)
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	for range 3 {
		session, err := s.OpenPTY(ctx, core.PTYSpec{})
		require.NoError(t, err)
		require.NoError(t, session.Close(ctx))
		other, err := s.AttachPTY(ctx, "s1", true, 0)
		require.NoError(t, err)
		require.NoError(t, other.Detach())
		require.NoError(t, other.Reattach(ctx))
		require.NoError(t, other.Close(ctx))
	}
	assert.EqualValues(t, 9, greeted.Load())
}

// An address that nobody answers at is left after a while that the caller chooses.
func TestOpenSandboxSilentServerIsLeft(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }() // it accepts, and says nothing
	raw, err := json.Marshal(settings{"connection": settings{"domain": l.Addr().String(), "request_timeout_s": 0.2}, "create": settings{"retries": 0}})
	require.NoError(t, err)
	provider, err := opensandbox.New(raw)
	require.NoError(t, err)
	defer func() { assert.NoError(t, provider.Close(context.Background())) }()
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	_, err = provider.Create(ctx, core.Spec{Image: "i"})
	assert.Equal(t, core.KindTimeout, core.KindOf(err), "%v", err)
	assert.NoError(t, ctx.Err())
}
