package execd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
)

// linesOf tells bytes in pieces of a size and gives the texts.
func linesOf(t testing.TB, p []byte, size int) []string {
	w := httptest.NewRecorder()
	l := &lines{kind: "stdout", out: newStream(w)}
	for rest := p; len(rest) > 0; {
		n := min(size, len(rest))
		require.NoError(t, l.write(append([]byte(nil), rest[:n]...)))
		rest = rest[n:]
	}
	l.end()
	var out []string
	for e, err := range events(w.Body) {
		require.NoError(t, err)
		require.Equal(t, "stdout", e.Type)
		out = append(out, e.Text)
	}
	return out
}

// Output is told line by line, however it is cut into pieces.
func FuzzLines(f *testing.F) {
	for _, s := range []string{"", "a", "a\n", "a\n\nb\n", "x\r\ny\rz\n", "\r\r\n\n", "\xff\xfe caf\xc3\xa9", "\n", "\r"} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, p []byte, size int) {
		size = max(1, min(size, 1<<16))
		got := linesOf(t, p, size)
		require.Equal(t, linesOf(t, p, len(p)+1), got)
		// All that is no end of a line is told, in its order.
		plain := strings.NewReplacer("\r\n", "", "\n", "", "\r", "").Replace(strings.ToValidUTF8(string(p), ""))
		told := strings.NewReplacer("\n", "", "\uFFFD", "").Replace(strings.Join(got, ""))
		require.Equal(t, strings.ReplaceAll(plain, "\uFFFD", ""), told)
	})
}

// A flood of lines is told at the speed of a pipe or so.
func BenchmarkLines(b *testing.B) {
	p := bytes.Repeat([]byte(strings.Repeat("x", 99)+"\n"), 640)
	l := &lines{kind: "stdout", out: &stream{w: discard{}}}
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if err := l.write(p); err != nil {
			b.Fatal(err)
		}
	}
}

// discard is a client that takes everything.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}
func (discard) Flush()                      {}

func TestALineWithoutEndIsToldInParts(t *testing.T) {
	t.Parallel()
	p := []byte(strings.Repeat("é", maxLine/2+100<<10) + "x\nrest")
	got := linesOf(t, p, 64<<10)
	require.Len(t, got, 3)
	require.Equal(t, strings.TrimSuffix(string(p), "\nrest"), got[0]+got[1])
	require.True(t, utf8.ValidString(got[0]))
	require.LessOrEqual(t, len(got[0]), maxLine)
	require.Equal(t, "rest", got[2])
}

// A range that is answered lies in the file and is what was asked for.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"bytes=0-3", "bytes=6-", "bytes=-6", "bytes=3-1000", "bytes=100-200", "bytes=0-1,4-5", "bytes=abc", "chunks=1-2", "bytes=-0", "bytes=9223372036854775807-", "bytes=5-2"} {
		f.Add(s, int64(12))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		size = max(0, size)
		from, n, err := firstRange(header, size)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, from, int64(0))
		require.Positive(t, n)
		require.LessOrEqual(t, from, size-n)
	})
}

// The bodies of requests are read, or refused in this protocol's words; nothing is run for one that is refused.
func FuzzBodies(f *testing.F) {
	seeds := []string{`{"command":"x"}`, `{"command":""}`, `{"argv":["a"],"timeout":-1}`, `{"uid":-1,"command":"x"}`, `{"envs":{"a":1},"command":"x"}`, `{"timeout":"5"}`, `{bad`, ``, `[]`, `null`, `{"command":"x","uid":1e99}`, `{"cwd":"$X","command":"x"}`}
	for _, s := range seeds {
		f.Add([]byte(s))
	}
	s := New(Config{Env: []string{"HOME=/"}}, process.NewWaiter())
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, p []byte) {
		read := func(v any, problem func() string, cwd func() *string) {
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(p))
			if err := decode(w, r, v); err != nil {
				fail(w, http.StatusBadRequest, codeBadBody, "%v", err)
			} else if s.valid(w, "invalid. ", problem(), cwd()) {
				return
			}
			var told failure
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &told))
			require.Equal(t, codeBadBody, told.Code)
			require.NotEmpty(t, told.Message)
			require.Equal(t, http.StatusBadRequest, w.Code)
		}
		var a RunCommandRequest
		read(&a, a.problem, func() *string { return &a.Cwd })
		var b RunInSessionRequest
		read(&b, b.problem, func() *string { return &b.Cwd })
		m := map[string]json.RawMessage{}
		if json.Unmarshal(p, &m) == nil && m != nil {
			dropUnknown(m)
		}
	})
}

// An upload that is refused leaves nothing, and no file comes to lie anywhere but at its path.
func FuzzUpload(f *testing.F) {
	part := func(name, file, body string) string {
		return fmt.Sprintf("--B\r\nContent-Disposition: form-data; name=%q; filename=%q\r\n\r\n%s\r\n", name, file, body)
	}
	f.Add([]byte(part("metadata", "m", `{"path":"@a"}`) + part("file", "f", "x") + "--B--\r\n"))
	f.Add([]byte(part("file", "f", "x") + part("metadata", "m", `{"path":"@a"}`) + "--B--\r\n"))
	f.Add([]byte(part("metadata", "m", `{"path":"@a","mode":999}`) + part("file", "f", "x") + "--B"))
	f.Add([]byte(part("metadata", "m", `{"path":"@d/e","owner":"nobody-knows"}`) + part("file", "f", "") + part("file", "f", "") + "--B--"))
	f.Add([]byte("--B\r\n\r\n--B--"))
	s := New(Config{}, process.NewWaiter())
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, p []byte) {
		dir := t.TempDir()
		body := strings.ReplaceAll(string(p), "@", dir+"/")
		// A path elsewhere would be written to.
		for rest := body; ; {
			_, after, found := strings.Cut(strings.ToLower(rest), `path`)
			if !found {
				break
			}
			if !strings.HasPrefix(strings.TrimLeft(after, "\": \t\r\n"), strings.ToLower(dir)) || strings.Contains(body, "..") || strings.Contains(body, `\`) || strings.Contains(body, "$") {
				return
			}
			rest = after
		}
		if !strings.Contains(strings.ToLower(body), "path") && strings.Contains(body, `\`) {
			return
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/files/upload", strings.NewReader(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=B")
		s.ServeHTTP(w, r)
		require.Contains(t, []int{200, 400, 500}, w.Code, w.Body.String())
		left, err := filepath.Glob(filepath.Join(dir, "*/.ngs-upload-*"))
		require.NoError(t, err)
		here, err := filepath.Glob(filepath.Join(dir, ".ngs-upload-*"))
		require.NoError(t, err)
		require.Empty(t, append(left, here...))
	})
}

// masked is a client's frame.
func masked(first byte, length []byte, payload string) []byte {
	p := append([]byte{first}, length...)
	p[1] |= 0x80
	return append(append(p, 0, 0, 0, 0), payload...)
}

// Whatever a client sends on a terminal's connection ends that connection at
// most: the session can be attached to afterwards.
func FuzzFrames(f *testing.F) {
	text := func(s string) []byte { return masked(0x81, []byte{byte(len(s))}, s) }
	f.Add(text(`{"type":"ping"}`))
	f.Add(text(`{"type":"resize","cols":-1,"rows":99999999}`))
	f.Add(text(`{"type":"stdin","data":"x"}`))
	f.Add(masked(0x82, []byte{3}, "\x00ab"))
	f.Add(masked(0x82, []byte{0}, ""))
	f.Add(masked(0x02, []byte{2}, "\x00a"))                                          // a message that goes on
	f.Add(append(masked(0x02, []byte{2}, "\x00a"), masked(0x80, []byte{1}, "b")...)) // and does
	f.Add(masked(0x88, []byte{2}, "\x03\xe8"))                                       // good-bye
	f.Add(masked(0x89, []byte{4}, "ping"))
	f.Add(masked(0x82, []byte{127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "\x00")) // longer than there is memory
	f.Add(masked(0x82, []byte{126, 0, 1}, "\x00"))
	f.Add([]byte{0x82, 1, 0})                      // without a mask
	f.Add(masked(0xf2, []byte{1}, "\x00"))         // reserved bits
	f.Add(masked(0x89, []byte{126, 1, 0}, "long")) // a control frame that is too long
	s := New(Config{Env: os.Environ()}, process.NewWaiter())
	var mu sync.Mutex
	var fault any
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			// The HTTP server would keep it to itself.
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				mu.Lock()
				fault = p
				mu.Unlock()
			}
		}()
		s.ServeHTTP(w, r)
	}))
	srv.Config.BaseContext = func(net.Listener) context.Context { return s.ctx }
	srv.Start()
	f.Cleanup(func() {
		s.Close()
		srv.Close()
	})
	f.Fuzz(func(t *testing.T, p []byte) {
		d := &daemon{t: t, base: srv.URL}
		status, body := d.ask(http.MethodPost, "/pty", `{"command":"exec cat >/dev/null"}`)
		require.Equal(t, http.StatusCreated, status, body)
		id := strings.Split(body, `"`)[3]
		conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
		_, err = fmt.Fprintf(conn, "GET /pty/%s/ws?pty=0 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", id)
		require.NoError(t, err)
		in := bufio.NewReader(conn)
		res, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, res.StatusCode)
		// The daemon may hang up before it has read everything.
		_, _ = conn.Write(p)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, in)
		ws := d.connect(id, "takeover=1")
		_, hello, err := ws.ReadMessage()
		require.NoError(t, err)
		require.Contains(t, string(hello), `"connected"`)
		require.NoError(t, ws.Close())
		status, body = d.ask(http.MethodDelete, "/pty/"+id, "")
		require.Equal(t, http.StatusOK, status, body)
		mu.Lock()
		defer mu.Unlock()
		require.Nil(t, fault)
	})
}
