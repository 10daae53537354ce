package agent

import (
	"context"
	"crypto/rand"
	encoding "encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// forger answers as an agent that holds the token, and says what it was told to say.
type forger struct {
	token  []byte
	answer []byte // to every operation

	work  sync.WaitGroup
	mu    sync.Mutex
	conns []net.Conn
}

func (f *forger) dial(context.Context) (net.Conn, error) {
	host, sandbox := net.Pipe()
	f.mu.Lock()
	f.conns = append(f.conns, sandbox)
	f.mu.Unlock()
	f.work.Go(func() { f.serve(sandbox) })
	return host, nil
}

func (f *forger) serve(c net.Conn) {
	if wire.AcceptHandshake(c, f.token, nil) != nil {
		_ = c.Close()
		return
	}
	st := wire.NewAgentStream(c)
	_, p, err := st.ReadFrame(nil)
	if err == nil && strings.Contains(string(p), `"`+wire.OpPresence+`"`) {
		_ = st.WriteJSON(wire.Meta, wire.Info{Version: wire.Version})
		return // it stays open
	}
	f.work.Go(func() { _, _ = io.Copy(io.Discard, c) }) // a pipe has no room of its own
	_, _ = c.Write(f.answer)
	f.close()
}

// close hangs up everywhere, as an agent that is killed.
func (f *forger) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.conns {
		_ = c.Close()
	}
}

func frameOf(t wire.Type, payload string) []byte {
	b := encoding.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	return append(append(b, byte(t)), payload...)
}

// FuzzForgedAnswers lets a sandbox say anything in the agent's place. An operation must end, with no more output than was
// sent, and a download must leave a whole file or none.
func FuzzForgedAnswers(f *testing.F) {
	frames := func(all ...[]byte) (b []byte) {
		for _, one := range all {
			b = append(b, one...)
		}
		return b
	}
	const exec, execWithInput, download, upload = 0, 1, 2, 3
	f.Add(byte(exec), frames(frameOf(wire.Accepted, ""), frameOf(wire.Out, "out\n"), frameOf(wire.Err, "err\n"), frameOf(wire.Result, `{"code":3}`)))
	f.Add(byte(exec), frameOf(wire.Result, `{"timed_out":true,"message":"late"}`))
	f.Add(byte(exec), frameOf(wire.Result, `{"cancelled":true,"code":-9}`))
	f.Add(byte(exec), frameOf(wire.Result, `{"error":"no such user","kind":"user"}`))
	f.Add(byte(exec), frames(frameOf(wire.Farewell, `{"reason":"bye"}`), frameOf(wire.Result, `{`)))
	f.Add(byte(exec), []byte{0xff, 0xff, 0xff, 0xff, byte(wire.Out), 1})
	f.Add(byte(execWithInput), frames(frameOf(wire.StdinTaken, ""), frameOf(wire.StdinTaken, "x"), frameOf(wire.StdinTaken, ""),
		frameOf(wire.StdinTaken, ""), frameOf(wire.StdinTaken, ""), frameOf(wire.StdinTaken, ""), frameOf(wire.Result, `{}`)))
	f.Add(byte(download), frames(frameOf(wire.Meta, `{"size":4,"mode":420}`), frameOf(wire.Out, "data"), frameOf(wire.Result, `{"size":4}`)))
	f.Add(byte(download), frames(frameOf(wire.Meta, `{"size":-1}`), frameOf(wire.Result, `{"size":-1}`)))
	f.Add(byte(download), frames(frameOf(wire.Meta, `{"size":9223372036854775807,"mode":4294967295}`), frameOf(wire.Out, "data"), frameOf(wire.Result, `{"size":4}`)))
	f.Add(byte(upload), frames(frameOf(wire.Accepted, ""), frameOf(wire.Result, `{"size":1}`)))

	folder := f.TempDir()
	source := filepath.Join(folder, "source")
	require.NoError(f, os.WriteFile(source, []byte("content"), 0o600))
	target := filepath.Join(folder, "target")
	token := make([]byte, wire.TokenLen)
	_, err := rand.Read(token)
	require.NoError(f, err)

	f.Fuzz(func(t *testing.T, op byte, answer []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		agent := &forger{token: token, answer: answer}
		c, err := Connect(ctx, Options{Token: token, Provider: "test", SandboxID: "box", Dial: agent.dial})
		require.NoError(t, err)
		defer agent.work.Wait()
		defer agent.close()
		defer c.Close()
		switch op % 4 {
		case exec, execWithInput:
			req := core.ExecRequest{Command: "true", Timeout: time.Minute}
			if op%4 == execWithInput {
				req.Stdin = strings.NewReader(strings.Repeat("x", 6*wire.MaxData))
			}
			out := core.NewCollector(0)
			res, err := c.Exec(ctx, req, out)
			require.NoError(t, ctx.Err(), "the command never ended")
			if err == nil && res.ErrorType == "" {
				require.GreaterOrEqual(t, res.ExitCode, 0)
				require.LessOrEqual(t, res.ExitCode, 255)
			}
			got := len(out.Output(core.Stdout).String()) + len(out.Output(core.Stderr).String())
			require.LessOrEqual(t, got, 3*len(answer), "there is more output than was sent") // a byte that is no text takes three
		case download:
			err := c.Download(ctx, "/there", target)
			require.NoError(t, ctx.Err(), "the download never ended")
			if err == nil {
				st, err := os.Stat(target)
				require.NoError(t, err)
				require.LessOrEqual(t, st.Size(), int64(len(answer)))
				require.NoError(t, os.Remove(target))
			}
			left, err := os.ReadDir(folder)
			require.NoError(t, err)
			require.Len(t, left, 1, "a download that failed leaves something behind")
		case upload:
			_ = c.Upload(ctx, source, "/there")
			require.NoError(t, ctx.Err(), "the upload never ended")
		}
	})
}
