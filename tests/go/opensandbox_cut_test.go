package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	standin "github.com/nemo-gym/nemo_gym_sandbox/tests/standins/opensandbox"
)

// cutter is a wire to a server that breaks once: behind a number of bytes of the first exchange that begins as told.
type cutter struct {
	url    string
	begins []byte // of the request
	upward bool   // the request's bytes count, not the answer's
	after  int64
	passed atomic.Int64 // bytes that were counted
	cut    atomic.Bool

	listener net.Listener
	server   string
	open     sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

func newCutter(t *testing.T, server *standin.Server, begins string, upward bool, after int64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{
		url: "http://" + l.Addr().String(), begins: []byte(begins), upward: upward, after: after, listener: l,
		server: strings.TrimPrefix(server.URL, "http://"),
	}
	c.open.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.open.Go(func() { c.wire(conn) })
		}
	})
	return c
}

func (c *cutter) close() {
	_ = c.listener.Close()
	c.mu.Lock()
	for _, conn := range c.conns {
		_ = conn.Close()
	}
	c.mu.Unlock()
	c.open.Wait()
}

// wire joins one connection with the server.
func (c *cutter) wire(near net.Conn) {
	far, err := net.Dial("tcp", c.server)
	if err != nil {
		_ = near.Close()
		return
	}
	c.mu.Lock()
	c.conns = append(c.conns, near, far)
	c.mu.Unlock()
	var counting atomic.Bool
	var both sync.WaitGroup
	end := func() {
		_ = near.Close()
		_ = far.Close()
	}
	move := func(to, from net.Conn, upward bool) {
		defer end()
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			p := buf[:n]
			if upward && bytes.HasPrefix(p, c.begins) && !c.cut.Load() {
				counting.Store(true)
			}
			if counting.Load() && upward == c.upward && !c.cut.Load() {
				left := c.after - c.passed.Load()
				if int64(len(p)) > left {
					c.cut.Store(true)
					_, _ = to.Write(p[:left])
					return
				}
				c.passed.Add(int64(len(p)))
			}
			if n > 0 {
				if _, werr := to.Write(p); werr != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	both.Go(func() { move(far, near, true) })
	both.Go(func() { move(near, far, false) })
	both.Wait()
}

// everyCut runs a test with the wire cut behind each byte of an exchange, many at once.
func everyCut(t *testing.T, server *standin.Server, begins func(n int64) string, upward bool, try func(t *testing.T, c *cutter, n int64)) {
	t.Helper()
	whole := newCutter(t, server, begins(-1), upward, 1<<40)
	try(t, whole, -1)
	whole.close()
	require.Greater(t, whole.passed.Load(), int64(50))
	gate := make(chan struct{}, 100)
	var all sync.WaitGroup
	var broke atomic.Int64
	for n := range whole.passed.Load() {
		gate <- struct{}{}
		all.Go(func() {
			defer func() { <-gate }()
			c := newCutter(t, server, begins(n), upward, n)
			defer c.close()
			try(t, c, n)
			if c.cut.Load() {
				broke.Add(1)
			}
		})
	}
	all.Wait()
	// Answers differ by a few bytes from one to the next.
	assert.Greater(t, broke.Load(), whole.passed.Load()*9/10)
}

// osbThrough takes up a sandbox by way of a wire.
func osbThrough(t *testing.T, server *standin.Server, c *cutter, id string, more settings) (*core.Sandbox, func()) {
	t.Helper()
	blocks := settings{"connection": settings{"domain": c.url}, "create": settings{"skip_health_check": true}}
	for k, v := range more {
		blocks[k] = v
	}
	p := newOpenSandboxHere(t, server, blocks)
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	s, err := core.Connect(ctx, p, map[string]any{"sandbox_id": id})
	if !assert.NoError(t, err) {
		cancel()
		t.FailNow()
	}
	return s, func() {
		cancel()
		assert.NoError(t, s.Disconnect())
		assert.NoError(t, p.Close(context.Background()))
	}
}

func runsOf(note string) string {
	p, err := os.ReadFile(note)
	if err != nil {
		return ""
	}
	return string(p)
}

// A command whose wire is cut is a success only when all of it has come, it never runs twice, and nothing hangs.
func TestOpenSandboxCommandIsCutAtEachByte(t *testing.T) {
	for _, way := range []struct {
		mode   string
		upward bool
		stdout string
	}{{"streamed", false, "out"}, {"streamed", true, "out"}, {"polled", false, "out\n"}} {
		t.Run(fmt.Sprintf("%s upward=%v", way.mode, way.upward), func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			box := osbBox(t, server, nil, core.Spec{})
			folder := t.TempDir()
			begins := func(int64) string { return "POST /v1/sandboxes/" + box.ID() + "/proxy/44772/command " }
			everyCut(t, server, begins, way.upward, func(t *testing.T, c *cutter, n int64) {
				s, done := osbThrough(t, server, c, box.ID(), osbModes[way.mode])
				defer done()
				note := filepath.Join(folder, fmt.Sprint(n))
				out := core.NewCollector(0)
				defer out.Close()
				ctx, cancel := context.WithTimeout(context.Background(), 2*osbSoon)
				defer cancel()
				res, err := s.Exec(ctx, core.ExecRequest{Command: "echo run >> " + note + "; echo out; exit 3", Timeout: osbSoon}, out)
				if !assert.NoError(t, err, "cut at %d", n) {
					return
				}
				if res.ErrorType == "" {
					assert.Equal(t, 3, res.ExitCode, "cut at %d", n)
					assert.Equal(t, way.stdout, out.Output(core.Stdout).String(), "cut at %d", n)
					assert.Equal(t, "run\n", runsOf(note), "cut at %d", n)
				} else {
					assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType, "cut at %d", n)
					assert.Equal(t, core.NoExitCode, res.ExitCode, "cut at %d", n)
					assert.LessOrEqual(t, len(runsOf(note)), len("run\n"), "cut at %d", n)
				}
				if n < 0 {
					assert.Empty(t, res.ErrorType, res.Reason)
				}
			})
		})
	}
}

// A transfer whose wire is cut is made again: the file is whole, or it is not there.
func TestOpenSandboxTransferIsCutAtEachByte(t *testing.T) {
	for _, way := range []string{"upload", "upload_upward", "download"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			box := osbBox(t, server, nil, core.Spec{})
			folder := t.TempDir()
			content := bytes.Repeat([]byte{'a', 0, 255, '\n'}, 40)
			local := filepath.Join(folder, "local")
			require.NoError(t, os.WriteFile(local, content, 0o600))
			ctx, cancel := context.WithTimeout(context.Background(), 2*osbSoon)
			defer cancel()
			require.NoError(t, box.Upload(ctx, local, "there"))
			verb := "POST /v1/sandboxes/" + box.ID() + "/proxy/44772/files/upload "
			if way == "download" {
				// Not the file with the sandbox's defaults, which is read first.
				verb = "GET /v1/sandboxes/" + box.ID() + "/proxy/44772/files/download?path=there "
			}
			everyCut(t, server, func(int64) string { return verb }, way == "upload_upward", func(t *testing.T, c *cutter, n int64) {
				s, done := osbThrough(t, server, c, box.ID(), nil)
				defer done()
				back := filepath.Join(folder, fmt.Sprintf("back-%d", n))
				if way == "download" {
					assert.NoError(t, s.Download(ctx, "there", back), "cut at %d", n)
				} else {
					name := fmt.Sprintf("up-%d", n)
					assert.NoError(t, s.Upload(ctx, local, name), "cut at %d", n)
					assert.NoError(t, box.Download(ctx, name, back), "cut at %d", n)
				}
				got, err := os.ReadFile(back)
				assert.NoError(t, err)
				assert.True(t, bytes.Equal(content, got), "cut at %d: %d bytes", n, len(got))
			})
		})
	}
}

// A terminal whose wire is cut goes on from the last byte, or says why not. Its command is never started a second time.
func TestOpenSandboxTerminalIsCutAtEachByte(t *testing.T) {
	for _, upward := range []bool{false, true} {
		t.Run(fmt.Sprintf("upward=%v", upward), func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			box := osbBox(t, server, nil, core.Spec{})
			folder := t.TempDir()
			var whole atomic.Int64
			everyCut(t, server, func(int64) string { return "GET /v1/sandboxes/" + box.ID() + "/proxy/44772/pty/" }, upward, func(t *testing.T, c *cutter, n int64) {
				s, done := osbThrough(t, server, c, box.ID(), nil)
				defer done()
				note := filepath.Join(folder, fmt.Sprint(n))
				ctx, cancel := context.WithTimeout(context.Background(), 2*osbSoon)
				defer cancel()
				command := "echo run >> " + note + "; echo one; read line; echo $line; exit 3"
				session, err := s.OpenPTY(ctx, core.PTYSpec{Command: command, NoTerminal: true})
				if err != nil {
					assert.Equal(t, core.KindPTY, core.KindOf(err), "cut at %d: %v", n, err)
					assert.LessOrEqual(t, len(runsOf(note)), len("run\n"))
					return
				}
				defer func() { assert.NoError(t, session.Close(ctx)) }()
				var got []byte
				// The input may have got lost with the wire, which is told to nobody: then the process waits for ever.
				short, stop := context.WithTimeout(ctx, 3*time.Second)
				defer stop()
				written := false
				for err = nil; err == nil; {
					var p []byte
					p, err = session.Read(short)
					got = append(got, p...)
					// Not before: where the wire is cut behind the first line, the process is still there for who comes back.
					if err == nil && !written && bytes.HasPrefix(got, []byte("one\n")) {
						written = true
						if err := session.Write(ctx, []byte("two\n")); err != nil {
							assert.Equal(t, core.KindPTY, core.KindOf(err), "cut at %d: %v", n, err)
						}
					}
				}
				if errors.Is(err, io.EOF) {
					code, err := session.WaitExit(ctx)
					assert.NoError(t, err)
					assert.Equal(t, 3, code, "cut at %d", n)
					assert.Equal(t, "one\ntwo\n", string(got), "cut at %d", n)
					whole.Add(1)
				} else {
					assert.True(t, strings.HasPrefix("one\ntwo\n", string(got)), "cut at %d: %q", n, got)
					if short.Err() == nil {
						assert.Equal(t, core.KindPTY, core.KindOf(err), "cut at %d: %v", n, err)
					}
				}
				assert.Equal(t, "run\n", runsOf(note), "cut at %d", n)
			})
			// Whoever comes back for more asks first. Where the process ends between the answer and the attaching, its
			// lock holds.
			asked, back := map[string]int{}, map[string]int{}
			for _, r := range server.Requests("GET", "/pty/") {
				query, err := url.ParseQuery(r.Query)
				require.NoError(t, err)
				if session, ok := strings.CutSuffix(r.Path, "/ws"); !ok {
					asked[r.Path]++
				} else if since := query.Get("since"); since != "" && since != "0" {
					back[session]++
				}
			}
			assert.NotEmpty(t, back)
			for session, n := range back {
				assert.LessOrEqual(t, n, asked[session], "%s was attached to again %d times", session, n)
			}
			assert.Greater(t, whole.Load(), int64(1))
		})
	}
}
