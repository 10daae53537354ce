package opensandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// upload sends the first file of a recorded request.
func (r *wireReplay) upload(ctx context.Context) {
	t, e := r.t, r.e
	parts, _ := readForm(e.request, strings.SplitN(strings.TrimPrefix(e.request, "--"), "\r\n", 2)[0]) // a long one is cut
	require.GreaterOrEqual(t, len(parts), 2)
	meta, _ := parts[0].meta.(map[string]any)
	name, _ := meta["path"].(string)
	mode := fs.FileMode(0o755)
	if digits, ok := meta["mode"].(float64); ok {
		n, err := strconv.ParseUint(strconv.Itoa(int(digits)), 8, 32)
		require.NoError(t, err)
		mode = fs.FileMode(n)
	}
	content := parts[1].content
	if e.BodyLen > 0 {
		// Its length tells how much is missing: what is around the file is as long as before the part that was kept.
		around := len("--"+strings.Repeat("0", 32)+"--\r\n") + len("\r\n")
		content += strings.Repeat("\x00", e.BodyLen-len(e.request)-around+2)
	}
	owner, _ := meta["owner"].(string)
	r.also = func(w http.ResponseWriter, req *http.Request) bool {
		command := strings.HasSuffix(req.URL.Path, "/command") // the folder's owner
		if command {
			_, _ = io.WriteString(w, `{"type":"init","text":"1"}`+"\n\n"+`{"type":"execution_complete"}`+"\n\n")
		}
		return command
	}
	r.i.kept = core.Defaults{User: owner}
	err := r.i.store(ctx, strings.NewReader(content), int64(len(content)), mode, name, false)
	r.outcome(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	_, boundary, _ := strings.Cut(r.sent.Header.Get("Content-Type"), "boundary=")
	sent, err := readForm(r.body, boundary)
	require.NoError(t, err)
	require.Len(t, sent, 2)
	assert.True(t, content == sent[1].content, "the file's bytes")
	got, _ := sent[0].meta.(map[string]any)
	assert.Equal(t, name, got["path"])
	if meta["mode"] != nil {
		assert.Equal(t, meta["mode"], got["mode"])
	}
	assert.Equal(t, meta["owner"], got["owner"])
}

func (r *wireReplay) download(ctx context.Context) {
	t, e := r.t, r.e
	name := r.queried("path")
	r.also = func(w http.ResponseWriter, req *http.Request) bool {
		info := strings.HasSuffix(req.URL.Path, "/files/info")
		if info {
			_, _ = fmt.Fprintf(w, `{%q:{"path":%q,"type":"file","size":%d}}`, name, name, len(e.body))
		}
		return info
	}
	var got bytes.Buffer
	err := r.i.read(ctx, name, &got)
	if e.Answer["Content-Length"] == strconv.Itoa(1<<63-1) {
		assert.Equal(t, core.KindInvalid, core.KindOf(err), "%v", err)
		assert.ErrorContains(t, err, "is a directory")
		return
	}
	if r.outcome(err) {
		assert.True(t, e.body == got.String(), "the file's bytes")
	}
}

// fileInfo asks what became of a file that came without its length.
func (r *wireReplay) fileInfo(ctx context.Context) {
	t, e := r.t, r.e
	name := r.queried("path")
	var infos map[string]struct {
		Type string
		Size int64
	}
	_ = json.Unmarshal([]byte(e.body), &infos) // there may be none
	if infos[name].Type == "symlink" {         // its file is looked at by a command
		r.also = func(w http.ResponseWriter, req *http.Request) bool {
			if !strings.HasSuffix(req.URL.Path, "/command") {
				return false
			}
			replay(http.StatusOK, []string{`{"type":"init","text":"1"}` + "\n\n" + `{"type":"stdout","text":"12"}` + "\n\n" + `{"type":"execution_complete"}` + "\n\n"})(w, "")
			return true
		}
	}
	err := r.i.checkSize(ctx, name, max(infos[name].Size, 12))
	switch infos[name].Type {
	case "directory":
		assert.Equal(t, core.KindInvalid, core.KindOf(err), "%v", err)
	default:
		r.outcome(err)
	}
}

var sessionID = regexp.MustCompile(`^/pty/([^/]+)$`)

// terminal makes a request about a session by opening one, attaching to it or closing it. Its socket is played, here or among those that were recorded.
func (r *wireReplay) terminal(ctx context.Context) {
	t, e := r.t, r.e
	id := "00000000-0000-4000-8000-000000000099"
	if m := sessionID.FindStringSubmatch(e.path); m != nil {
		id = m[1]
	} else if e.status == http.StatusCreated {
		var body struct {
			ID string `json:"session_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(e.body), &body))
		id = body.ID
	}
	r.also = func(w http.ResponseWriter, req *http.Request) bool {
		switch {
		case strings.HasSuffix(req.URL.Path, "/ws"):
			playGreeting(w, req, id)
		case req.Method == e.Method:
			return false
		case req.Method == http.MethodPost:
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"session_id":"`+id+`"}`)
		}
		return true
	}
	c, err := r.i.terminals(ctx, "pty")
	require.NoError(t, err)
	if e.Method == http.MethodGet {
		s, err := c.Attach(ctx, id, true, 0)
		var info struct {
			Running bool  `json:"running"`
			Offset  int64 `json:"output_offset"`
		}
		require.NoError(t, json.Unmarshal([]byte(e.body), &info))
		switch {
		case e.status == http.StatusNotFound:
			assert.ErrorContains(t, err, "not found")
		case !info.Running && info.Offset > 0:
			assert.ErrorContains(t, err, "has ended", "its command would run once more")
		case assert.NoError(t, err):
			require.NoError(t, s.Close(ctx))
		}
		return
	}
	var spec core.PTYSpec
	if e.Method == http.MethodPost {
		var body struct{ Cwd, Command string }
		_ = json.Unmarshal([]byte(e.request), &body) // it may be missing
		spec.Cwd, spec.Command = body.Cwd, body.Command
	}
	s, err := c.Open(ctx, spec)
	if e.Method == http.MethodPost && e.status/100 != 2 {
		require.Error(t, err)
		assert.Equal(t, core.KindPTY, core.KindOf(err))
		assert.ErrorContains(t, err, fmt.Sprintf("HTTP %d", e.status))
		return
	}
	require.NoError(t, err)
	assert.Equal(t, id, s.SessionID())
	require.NoError(t, s.Close(ctx)) // also when it is gone
}

// playGreeting is a socket of a session that goes on until its client leaves.
func playGreeting(w http.ResponseWriter, req *http.Request, id string) {
	u := websocket.Upgrader{}
	c, err := u.Upgrade(w, req, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	if c.WriteMessage(websocket.TextMessage, []byte(`{"type":"connected","session_id":"`+id+`","mode":"pty"}`+"\n")) != nil {
		return
	}
	for {
		if _, _, err := c.ReadMessage(); err != nil {
			return
		}
	}
}
