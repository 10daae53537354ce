package ptyserver_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/ptytest"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 20 * time.Second

// stranger is a client that knows the protocol from recordings only.
type stranger struct {
	t    testing.TB
	url  string
	serv *ptyserver.Server
}

func serve(t testing.TB, server *ptyserver.Server) *stranger {
	h := httptest.NewServer(server.Handler())
	t.Cleanup(func() {
		server.Close()
		h.CloseClientConnections()
		h.Close()
	})
	return &stranger{t, h.URL, server}
}

func newStranger(t testing.TB) *stranger {
	return serve(t, ptyserver.New(ptytest.Starter{}, ptyserver.NewBudget(8<<20)))
}

func (c *stranger) call(method, path, body string) (int, string) {
	c.t.Helper()
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(body))
	require.NoError(c.t, err)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	require.NoError(c.t, err)
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	require.NoError(c.t, err)
	return res.StatusCode, string(p)
}

func (c *stranger) create(body string) string {
	c.t.Helper()
	status, answer := c.call("POST", "/pty", body)
	require.Equal(c.t, http.StatusCreated, status, answer)
	var made map[string]any
	require.NoError(c.t, json.Unmarshal([]byte(answer), &made))
	return made["session_id"].(string)
}

func (c *stranger) dial(id, query string) (*websocket.Conn, *http.Response) {
	c.t.Helper()
	conn, res, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/pty/"+id+"/ws"+query, nil)
	if err != nil {
		require.ErrorIs(c.t, err, websocket.ErrBadHandshake)
		return nil, res
	}
	require.NoError(c.t, conn.SetReadDeadline(time.Now().Add(soon)))
	c.t.Cleanup(func() { _ = conn.Close() })
	return conn, res
}

func (c *stranger) message(conn *websocket.Conn) (kind int, p []byte) {
	c.t.Helper()
	kind, p, err := conn.ReadMessage()
	require.NoError(c.t, err)
	return kind, p
}

// output reads live output until it ends with a text.
func (c *stranger) output(conn *websocket.Conn, channel byte, want string) string {
	c.t.Helper()
	var got []byte
	for !bytes.HasSuffix(got, []byte(want)) {
		kind, p := c.message(conn)
		require.Equal(c.t, websocket.BinaryMessage, kind, "%q after %q", p, got)
		require.Equal(c.t, channel, p[0])
		got = append(got, p[1:]...)
	}
	return string(got)
}

func connected(id, mode string) string {
	return `{"type":"connected","session_id":"` + id + `","mode":"` + mode + `"}` + "\n"
}

func TestRequestsAreAnsweredAsRecorded(t *testing.T) {
	c := newStranger(t)
	status, body := c.call("POST", "/pty", `{"cwd": "/tmp"}`)
	assert.Equal(t, 201, status)
	assert.Regexp(t, `^\{"session_id":"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"\}$`, body)
	id := c.create("")
	status, body = c.call("GET", "/pty/"+id, "")
	assert.Equal(t, 200, status)
	assert.Equal(t, `{"session_id":"`+id+`","running":false,"output_offset":0}`, body)
	status, body = c.call("DELETE", "/pty/"+id, "")
	assert.Equal(t, 200, status)
	assert.Empty(t, body)
	for _, method := range []string{"GET", "DELETE"} {
		status, body = c.call(method, "/pty/"+id, "")
		assert.Equal(t, 404, status)
		assert.Equal(t, `{"code":"CONTEXT_NOT_FOUND","message":"pty session `+id+` not found"}`, body)
	}
	conn, res := c.dial(id, "")
	assert.Nil(t, conn)
	assert.Equal(t, 404, res.StatusCode)
	status, body = c.call("POST", "/pty", "{nope")
	assert.Equal(t, 400, status)
	assert.Contains(t, body, "INVALID_REQUEST_BODY")
	status, _ = c.call("POST", "/pty", `{"rows":-1,"cols":5}`)
	assert.Equal(t, 400, status)
}

func TestFramesOfATerminalAreAsRecorded(t *testing.T) {
	c := newStranger(t)
	id := c.create(`{"command":"stty -echo; echo hi; read x; echo got $x; exit 7"}`)
	conn, _ := c.dial(id, "")
	kind, p := c.message(conn)
	assert.Equal(t, websocket.TextMessage, kind)
	assert.Equal(t, connected(id, "pty"), string(p))
	assert.Equal(t, "hi\r\n", c.output(conn, 1, "\n"))
	send := func(kind int, p string) { require.NoError(t, conn.WriteMessage(kind, []byte(p))) }
	send(websocket.TextMessage, `{"type":"ping"}`)
	_, p = c.message(conn)
	assert.Equal(t, "{\"type\":\"pong\"}\n", string(p))
	send(websocket.TextMessage, `{"type":"bogus"}`)
	_, p = c.message(conn)
	assert.Equal(t, `{"type":"error","error":"unknown frame type \"bogus\"","code":"INVALID_FRAME"}`+"\n", string(p))
	send(websocket.TextMessage, "{not json")
	send(websocket.BinaryMessage, "\x01abc")
	send(websocket.BinaryMessage, "")
	send(websocket.TextMessage, `{"type":"resize","cols":10,"rows":0}`)
	send(websocket.TextMessage, `{"type":"signal","signal":"SIGUSR1"}`)
	send(websocket.TextMessage, `{"type":"stdin","data":"a"}`)
	send(websocket.BinaryMessage, "\x00b\n")
	assert.Equal(t, "got ab\r\n", c.output(conn, 1, "\n"))
	kind, p = c.message(conn)
	assert.Equal(t, websocket.TextMessage, kind)
	assert.Equal(t, "{\"type\":\"exit\",\"exit_code\":7}\n", string(p))
	_, _, err := conn.ReadMessage()
	assert.Equal(t, &websocket.CloseError{Code: 1000, Text: "process exited"}, err)
	status, body := c.call("GET", "/pty/"+id, "")
	assert.Equal(t, 200, status)
	assert.Equal(t, `{"session_id":"`+id+`","running":false,"output_offset":12,"exit_code":7}`, body)
}

func TestFramesOfPipesAreAsRecorded(t *testing.T) {
	c := newStranger(t)
	id := c.create(`{"command":"echo out; echo err >&2; read x; exit 9"}`)
	conn, _ := c.dial(id, "?pty=0")
	_, p := c.message(conn)
	assert.Equal(t, connected(id, "pipe"), string(p))
	got := map[byte]string{}
	for len(got[1]) < 4 || len(got[2]) < 4 {
		_, p := c.message(conn)
		got[p[0]] += string(p[1:])
	}
	assert.Equal(t, map[byte]string{1: "out\n", 2: "err\n"}, got)
	require.NoError(t, conn.Close())
	// Without pty=0 the mode stays; both streams come back as one.
	conn, _ = c.dial(id, "?takeover=1")
	kind, p := c.message(conn)
	assert.Equal(t, websocket.BinaryMessage, kind)
	assert.Equal(t, "030000000000000000", hex.EncodeToString(p[:9]))
	assert.Len(t, p[9:], 8)
	_, p = c.message(conn)
	assert.Equal(t, connected(id, "pipe"), string(p))
	conn, _ = c.dial(id, "?takeover=1&since=999999")
	_, p = c.message(conn)
	assert.Equal(t, connected(id, "pipe"), string(p), "nothing is replayed from behind the end")
	for _, bad := range []string{"abc", "-5"} {
		conn, _ = c.dial(id, "?takeover=1&since="+bad)
		_, p = c.message(conn)
		assert.Equal(t, "030000000000000000", hex.EncodeToString(p[:9]))
	}
}

func TestReplayOfMoreThanIsRetainedAsRecorded(t *testing.T) {
	c := newStranger(t)
	id := c.create(`{"command":"read x; head -c 3000000 /dev/zero | tr '\\0' y; echo END; read x"}`)
	conn, _ := c.dial(id, "?pty=0")
	_, _ = c.message(conn)
	require.NoError(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00\n")))
	require.NoError(t, conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(1000, "")))
	require.Eventually(t, func() bool {
		_, body := c.call("GET", "/pty/"+id, "")
		return strings.Contains(body, `"output_offset":3000004`)
	}, soon, 5*time.Millisecond)
	conn, _ = c.dial(id, "?takeover=1")
	_, p := c.message(conn)
	assert.Len(t, p, 1048585)
	assert.Equal(t, "0300000000001dc6c4797979", hex.EncodeToString(p[:12]))
	assert.True(t, bytes.HasSuffix(p, []byte("yEND\n")))
	conn, _ = c.dial(id, "?takeover=1&since=2999994")
	_, p = c.message(conn)
	assert.Equal(t, "0300000000002dc6ba797979797979454e440a", hex.EncodeToString(p))
}

func TestOneHolderAsRecorded(t *testing.T) {
	c := newStranger(t)
	id := c.create(`{"command":"stty -echo; echo hi; read x; echo still-here"}`)
	first, _ := c.dial(id, "")
	_, _ = c.message(first)
	c.output(first, 1, "\n")
	conn, res := c.dial(id, "")
	assert.Nil(t, conn)
	assert.Equal(t, 409, res.StatusCode)
	for _, query := range []string{"", "?takeover=1"} {
		status, body := c.call("GET", "/pty/"+id+"/ws"+query, "")
		assert.Equal(t, 409, status)
		assert.Equal(t, `{"code":"ALREADY_CONNECTED","message":"another client is already connected to pty session `+id+`"}`, body)
	}
	second, _ := c.dial(id, "?takeover=1&since=4")
	_, _, err := first.ReadMessage()
	assert.Equal(t, &websocket.CloseError{Code: 4001, Text: "TAKEN_OVER"}, err)
	_, p := c.message(second)
	assert.Equal(t, connected(id, "pty"), string(p))
	require.NoError(t, second.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(1000, "")))
	_, _, _ = second.ReadMessage()
	require.Eventually(t, func() bool {
		status, _ := c.call("GET", "/pty/"+id+"/ws", "")
		return status == 400 // free, but no handshake
	}, soon, time.Millisecond)
	third, _ := c.dial(id, "")
	_, p = c.message(third)
	assert.Equal(t, "0300000000000000006869", hex.EncodeToString(p[:11]))
	_, _ = c.message(third)
	// What the holder of a deleted session sees.
	status, _ := c.call("DELETE", "/pty/"+id, "")
	assert.Equal(t, 200, status)
	_, p = c.message(third)
	assert.Equal(t, "{\"type\":\"exit\",\"exit_code\":137}\n", string(p))
}

func TestBigInputInOneFrame(t *testing.T) {
	c := newStranger(t)
	id := c.create(`{"command":"head -c 1048576 | wc -c"}`)
	conn, _ := c.dial(id, "?pty=0")
	_, _ = c.message(conn)
	require.NoError(t, conn.WriteMessage(websocket.BinaryMessage, append([]byte{0}, bytes.Repeat([]byte("q"), 1<<20)...)))
	assert.Equal(t, "1048576\n", c.output(conn, 1, "\n"))
}

func TestStartThatFailsIsAnErrorFrame(t *testing.T) {
	c := newStranger(t)
	id := c.create(`{"cwd":"/no/such/dir"}`)
	for range 2 {
		conn, _ := c.dial(id, "?takeover=1")
		_, p := c.message(conn)
		assert.Contains(t, string(p), `"code":"START_FAILED"`)
		_, _, err := conn.ReadMessage()
		assert.Error(t, err)
	}
}

func TestEndedProcessIsNotStartedAgain(t *testing.T) {
	c := newStranger(t)
	file := filepath.Join(t.TempDir(), "runs")
	id := c.create(`{"command":"echo run >> ` + file + `; exit 4"}`)
	for range 3 {
		conn, _ := c.dial(id, "?takeover=1")
		_, p := c.message(conn)
		assert.Equal(t, connected(id, "pty"), string(p))
		_, p = c.message(conn)
		assert.Equal(t, "{\"type\":\"exit\",\"exit_code\":4}\n", string(p))
	}
	runs, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "run\n", string(runs))
}

func TestEndedSessionsMakeRoomWhenMemoryRunsOut(t *testing.T) {
	c := serve(t, ptyserver.New(ptytest.Starter{}, ptyserver.NewBudget(256<<10)))
	var ids []string
	for range 6 {
		id := c.create(`{"command":"head -c 200000 /dev/zero | tr '\\0' x"}`)
		ids = append(ids, id)
		conn, _ := c.dial(id, "?pty=0")
		_, _ = c.message(conn)
		total := 0
		for {
			kind, p := c.message(conn)
			if kind == websocket.TextMessage {
				break
			}
			total += len(p) - 1
		}
		require.Equal(t, 200_000, total)
		_, _, _ = conn.ReadMessage()
		_ = conn.Close()
	}
	// The oldest keep their exit code and tell where their output would begin.
	require.Eventually(t, func() bool {
		_ = c.create("")
		conn, _ := c.dial(ids[0], "?takeover=1")
		_, p := c.message(conn)
		_ = conn.Close()
		return hex.EncodeToString(p) == "030000000000030d40"
	}, soon, time.Millisecond)
}

func TestConcurrentAttachesStartOneProcess(t *testing.T) {
	c := newStranger(t)
	file := filepath.Join(t.TempDir(), "runs")
	id := c.create(`{"command":"echo run >> ` + file + `; read x"}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/pty/"+id+"/ws?takeover=1", nil)
			if err == nil {
				_, _, _ = conn.ReadMessage()
				_ = conn.Close()
			}
		})
	}
	wg.Wait()
	require.Eventually(t, func() bool { p, _ := os.ReadFile(file); return len(p) > 0 }, soon, time.Millisecond)
	runs, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, "run\n", string(runs))
}
