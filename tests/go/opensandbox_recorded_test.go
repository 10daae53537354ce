package tests

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// recordedFrame is one event on a terminal's socket, as it was recorded from a real daemon.
type recordedFrame struct {
	Case, Kind, Dir, Conn, Hex, Text, URL, Reason string
	Seq, Status, Code                             int
}

// recordedSocket is one connection, from its handshake on.
type recordedSocket struct {
	name   string
	opened recordedFrame
	frames []recordedFrame
}

func recordedSockets(t *testing.T) []*recordedSocket {
	t.Helper()
	f, err := os.Open("../../agent/internal/execd/testdata/pty.jsonl")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	var all []*recordedSocket
	open := map[string]*recordedSocket{}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e recordedFrame
		require.NoError(t, json.Unmarshal(lines.Bytes(), &e))
		key := e.Case + "/" + e.Conn
		switch {
		case e.Kind == "ws_handshake":
			s := &recordedSocket{name: fmt.Sprintf("%s/%d", e.Case, e.Seq), opened: e}
			open[key] = s
			all = append(all, s)
		case e.Kind == "ws_binary" && e.Hex == "": // too large to be kept
		case strings.HasPrefix(e.Kind, "ws_") && open[key] != nil:
			open[key].frames = append(open[key].frames, e)
		}
	}
	require.NoError(t, lines.Err())
	return all
}

// outcome is what a client has to make of a socket.
type socketOutcome struct {
	stdout, stderr string
	code           int
	exited         bool
	fails          string // part of the error
	left           bool   // by the client
}

func (s *recordedSocket) outcome(t *testing.T) socketOutcome {
	var o socketOutcome
	switch s.opened.Status {
	case http.StatusSwitchingProtocols:
	case http.StatusConflict:
		return socketOutcome{fails: "already has an attached client"}
	case http.StatusNotFound:
		return socketOutcome{fails: "not found"}
	default:
		return socketOutcome{fails: fmt.Sprintf("HTTP %d", s.opened.Status)}
	}
	for _, f := range s.frames {
		p, err := hex.DecodeString(f.Hex)
		require.NoError(t, err)
		switch {
		case f.Dir == "c>s" && f.Kind == "ws_close":
			o.left = true
		case f.Dir == "c>s":
		case f.Kind == "ws_binary" && p[0] == 2:
			o.stderr += string(p[1:])
		case f.Kind == "ws_binary" && p[0] == 1:
			o.stdout += string(p[1:])
		case f.Kind == "ws_binary" && p[0] == 3:
			o.stdout += string(p[9:])
		case f.Kind == "ws_text" && strings.Contains(f.Text, `"exit"`):
			var exit struct {
				ExitCode int `json:"exit_code"`
			}
			require.NoError(t, json.Unmarshal([]byte(f.Text), &exit))
			o.code, o.exited = exit.ExitCode, true
		case f.Kind == "ws_text" && strings.Contains(f.Text, "START_FAILED"):
			o.fails = "START_FAILED"
		case f.Kind == "ws_close" && f.Code == 4001:
			o.fails = "taken over"
		}
	}
	return o
}

// play sends what the daemon sent. What our clients never provoke is left out.
func (s *recordedSocket) play(c *websocket.Conn) {
	for _, f := range s.frames {
		p, err := hex.DecodeString(f.Hex)
		if err != nil || f.Dir == "c>s" || strings.Contains(f.Text, "INVALID_FRAME") {
			continue
		}
		switch f.Kind {
		case "ws_text":
			err = c.WriteMessage(websocket.TextMessage, []byte(f.Text))
		case "ws_binary":
			err = c.WriteMessage(websocket.BinaryMessage, p)
		case "ws_ping":
			err = c.WriteControl(websocket.PingMessage, p, time.Now().Add(osbSoon))
		case "ws_close":
			err = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(f.Code, f.Reason), time.Now().Add(osbSoon))
		case "ws_eof":
			return
		}
		if err != nil {
			return
		}
	}
	for { // until the client leaves
		if _, _, err := c.ReadMessage(); err != nil {
			return
		}
	}
}

// Every socket that was recorded from a real daemon is understood, frame by frame.
func TestOpenSandboxTerminalUnderstandsRecordedSockets(t *testing.T) {
	seen := map[string]int{}
	for _, socket := range recordedSockets(t) {
		seen[socket.opened.Case]++
		t.Run(socket.name, func(t *testing.T) {
			want := socket.outcome(t)
			p := newPuppet(t, socket.play)
			p.refuse = socket.opened.Status
			s := p.sandbox(t)
			ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
			defer cancel()
			at, err := url.Parse(socket.opened.URL)
			require.NoError(t, err)
			since, _ := strconv.ParseInt(at.Query().Get("since"), 10, 64) // there may be none
			session, err := s.AttachPTY(ctx, "s1", false, max(since, 0))
			if want.fails != "" && err != nil {
				assert.ErrorContains(t, err, want.fails)
				assert.Equal(t, core.KindPTY, core.KindOf(err))
				return
			}
			require.NoError(t, err)
			defer func() { assert.NoError(t, session.Close(ctx)) }()
			var stdout, stderr string
			for len(stdout) < len(want.stdout) || !want.left {
				var out []byte
				if out, err = session.Read(ctx); err != nil {
					break
				}
				stdout += string(out)
			}
			assert.Equal(t, want.stdout, stdout)
			switch {
			case want.fails != "":
				assert.ErrorContains(t, err, want.fails)
				assert.Equal(t, core.KindPTY, core.KindOf(err))
			case want.exited:
				require.ErrorIs(t, err, io.EOF)
				code, err := session.WaitExit(ctx)
				require.NoError(t, err)
				assert.Equal(t, want.code, code)
				for {
					out, err := session.ReadStderr(ctx)
					if errors.Is(err, io.EOF) {
						break
					}
					require.NoError(t, err)
					stderr += string(out)
				}
				assert.Equal(t, want.stderr, stderr)
			default:
				assert.True(t, want.left)
			}
		})
	}
	for _, name := range []string{"pty_basic", "signals", "pipe_mode", "command_sessions", "detach_reattach", "hold_and_takeover", "takeover_stalled_holder", "ring_eviction", "big_stdin", "start_failed", "auth", "server_ping"} {
		assert.Positive(t, seen[name], name)
	}
}
