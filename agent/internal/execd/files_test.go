package execd

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// form is the body of an upload: pairs of metadata and bytes.
func form(t *testing.T, parts ...string) (contentType string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		m, err := w.CreateFormFile("metadata", "metadata")
		require.NoError(t, err)
		_, err = io.WriteString(m, parts[i])
		require.NoError(t, err)
		f, err := w.CreateFormFile("file", "f")
		require.NoError(t, err)
		_, err = io.WriteString(f, parts[i+1])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return w.FormDataContentType(), b.Bytes()
}

func (d *daemon) upload(parts ...string) (int, string) {
	d.t.Helper()
	contentType, body := form(d.t, parts...)
	return d.ask(http.MethodPost, "/files/upload", string(body), "Content-Type", contentType)
}

func TestAnUploadIsThereWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o640))
	contentType, body := form(t, fmt.Sprintf(`{"path":%q}`, path), strings.Repeat("new", 1<<20))
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.base, "http://"))
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "POST /files/upload HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", contentType, len(body), body[:1<<20])
	require.NoError(t, err)
	soon(t, func() bool { found, err := os.ReadDir(dir); return err == nil && len(found) == 2 }, "the upload has not begun")
	require.NoError(t, conn.Close())
	soon(t, func() bool { found, err := os.ReadDir(dir); return err == nil && len(found) == 1 }, "what has come is still there")
	p, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(p))
}

func TestFilesOfAnUploadMayComeBeforeWhatDescribesThem(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	dir := t.TempDir()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for _, part := range []string{"file:1", "metadata:a", "metadata:b", "metadata:c", "file:2", "file:3"} {
		name, text, _ := strings.Cut(part, ":")
		p, err := w.CreateFormFile(name, "x")
		require.NoError(t, err)
		if name == "metadata" {
			text = fmt.Sprintf(`{"path":%q}`, filepath.Join(dir, text))
		}
		_, err = io.WriteString(p, text)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	status, body := d.ask(http.MethodPost, "/files/upload", b.String(), "Content-Type", w.FormDataContentType())
	require.Equal(t, http.StatusOK, status, body)
	for name, want := range map[string]string{"a": "1", "b": "2", "c": "3"} {
		p, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(p))
	}
}

func TestAnUploadKeepsOwnerModeAndLinksOfWhatItReplaces(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	dir := t.TempDir()
	path, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o640))
	require.NoError(t, os.Chown(path, 12, 34))
	require.NoError(t, os.Symlink("f", link))
	status, body := d.upload(fmt.Sprintf(`{"path":%q}`, link), "new")
	require.Equal(t, http.StatusOK, status, body)
	st, err := os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o640), st.Mode())
	require.Equal(t, uint32(12), st.Sys().(*syscall.Stat_t).Uid)
	st, err = os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, fs.ModeSymlink, st.Mode().Type())
	status, body = d.upload(fmt.Sprintf(`{"path":%q,"mode":4755}`, path), "new", fmt.Sprintf(`{"path":%q}`, filepath.Join(dir, "a/b/c")), "")
	require.Equal(t, http.StatusOK, status, body)
	st, err = os.Lstat(path)
	require.NoError(t, err)
	require.Equal(t, 0o755|fs.ModeSetuid, st.Mode())
	st, err = os.Stat(filepath.Join(dir, "a/b/c"))
	require.NoError(t, err)
	require.Equal(t, 0o777&^umask(), st.Mode())
}

func TestAFileThatIsNotFinishedCanNotBeReadByOthers(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	dir := t.TempDir()
	contentType, body := form(t, fmt.Sprintf(`{"path":%q,"mode":600}`, filepath.Join(dir, "secret")), strings.Repeat("new", 1<<20))
	conn, err := net.Dial("tcp", strings.TrimPrefix(d.base, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = fmt.Fprintf(conn, "POST /files/upload HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", contentType, len(body), body[:1<<20])
	require.NoError(t, err)
	soon(t, func() bool { found, err := os.ReadDir(dir); return err == nil && len(found) == 1 }, "the upload has not begun")
	found, err := os.ReadDir(dir)
	require.NoError(t, err)
	st, err := found[0].Info()
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o600), st.Mode())
}

func TestLinesOfAFileCanBeReadWhateverTheirLength(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	path := filepath.Join(t.TempDir(), "f")
	long := strings.Repeat("x", 200000)
	require.NoError(t, os.WriteFile(path, []byte("1\n"+long+"\n\n4\n5"), 0o600))
	for query, want := range map[string]string{
		"offset=2&limit=1": long, "offset=3&limit=2": "\n4", "limit=1": "1", "offset=4": "4\n5", "offset=5&limit=9": "5", "offset=6": "",
	} {
		status, body := d.ask(http.MethodGet, "/files/download?path="+path+"&"+query, "")
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, want, body, query)
	}
	for _, query := range []string{"limit=0", "offset=x", "limit=-1"} {
		status, _ := d.ask(http.MethodGet, "/files/download?path="+path+"&"+query, "")
		require.Equal(t, http.StatusBadRequest, status, query)
	}
}

func TestADownloadOfAFIFOWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	path := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	status, body := d.ask(http.MethodGet, "/files/download?path="+path, "")
	require.Equal(t, http.StatusOK, status)
	require.Empty(t, body)
}

func TestTheRootDirectoryIsNotRemoved(t *testing.T) {
	t.Parallel()
	s := New(Config{Env: []string{"ROOT=/"}}, nil)
	defer s.Close()
	// Asked of the function that decides; the request itself would be a test that can't be run twice.
	for _, path := range []string{"/", "//", "/.", "/tmp/..", "$ROOT"} {
		_, err := s.removable(path)
		require.ErrorIs(t, err, errRoot, path)
	}
	path, err := s.removable("/tmp/x")
	require.NoError(t, err)
	require.Equal(t, "/tmp/x", path)
}

func TestAPortOfTheSandboxIsReachedAsIfNobodyWereInBetween(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, append(plainEnv(t), varToken+"=sekret"))
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if websocket.IsWebSocketUpgrade(r) {
			ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
			if err != nil {
				return
			}
			defer ws.Close()
			kind, p, err := ws.ReadMessage()
			if err == nil {
				_ = ws.WriteMessage(kind, append([]byte("echo "), p...))
			}
			return
		}
		p, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s [%s] token=%q %s", r.Method, r.RequestURI, p, r.Header.Get(tokenHeader), r.Header.Get("X-Own"))
	}))
	defer service.Close()
	u, err := url.Parse(service.URL)
	require.NoError(t, err)
	prefix := "/proxy/" + u.Port()
	status, body := d.ask(http.MethodPatch, prefix+"/a%2Fb//c/../d?x=%20y&x", "body", tokenHeader, "sekret", "X-Own", "kept")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, `PATCH /a%2Fb//c/../d?x=%20y&x [body] token="" kept`, body)
	status, body = d.ask(http.MethodGet, prefix, "", tokenHeader, "sekret")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, `GET / [] token="" `, body)

	ws, _, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(d.base, "http")+prefix+"/ws", http.Header{tokenHeader: {"sekret"}})
	require.NoError(t, err)
	defer ws.Close()
	require.NoError(t, ws.WriteMessage(websocket.TextMessage, []byte("hello")))
	_, p, err := ws.ReadMessage()
	require.NoError(t, err)
	require.Equal(t, "echo hello", string(p))

	for _, port := range []string{"0", "65536", "x", "-1"} {
		status, _ := d.ask(http.MethodGet, "/proxy/"+port+"/", "", tokenHeader, "sekret")
		require.Equal(t, http.StatusBadRequest, status, port)
	}
}

func TestADaemonEndsThoughAClientHoldsAConnectionThroughIt(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(service.Close)
	u, err := url.Parse(service.URL)
	require.NoError(t, err)
	res := d.do(http.MethodGet, "/proxy/"+u.Port()+"/", "")
	t.Cleanup(func() { _ = res.Body.Close() })
	d.run("/command", shellCommand("true"))
	watch := d.do(http.MethodGet, "/metrics/watch", "")
	t.Cleanup(func() { _ = watch.Body.Close() })
	running := d.do(http.MethodPost, "/command", `{"command":"sleep 1000"}`)
	t.Cleanup(func() { _ = running.Body.Close() })
	// The daemon's own cleanup, which runs after these, fails when it does not end or leaves something.
}
