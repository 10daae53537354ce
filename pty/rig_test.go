package pty

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/ptytest"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/ptyserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon bounds what takes milliseconds on a machine that has nothing else to do.
const soon = 20 * time.Second

// rig is a server and a client of it, over a unix socket.
type rig struct {
	*Client
	t      testing.TB
	server *ptyserver.Server

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	deaf  bool // nobody can connect
}

var errDeaf = errors.New("the test lets nobody connect")

func newRig(t testing.TB) *rig {
	r := &rig{t: t, conns: map[net.Conn]struct{}{}}
	r.server = ptyserver.New(ptytest.Starter{}, ptyserver.NewBudget(64<<20))
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { r.server.ServeConn(c) })
		}
	})
	r.Client = &Client{URL: "http://sandbox", Provider: "test", SandboxID: "box", Flow: true}
	r.times = standard
	r.times.retry = []time.Duration{5 * time.Millisecond, 20 * time.Millisecond, 100 * time.Millisecond}
	r.times.refused = []time.Duration{5 * time.Millisecond, 50 * time.Millisecond}
	r.Dial = func(ctx context.Context) (net.Conn, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.deaf {
			return nil, errDeaf
		}
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", socket)
		if err == nil {
			r.conns[c] = struct{}{}
		}
		return c, err
	}
	t.Cleanup(func() {
		_ = l.Close()
		r.server.Close()
		r.cut()
		serving.Wait()
	})
	return r
}

// cut breaks all connections without a word.
func (r *rig) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
	clear(r.conns)
}

func (r *rig) setDeaf(deaf bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deaf = deaf
}

func (r *rig) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) open(spec core.PTYSpec) *Session {
	r.t.Helper()
	s, err := r.Open(r.ctx(), spec)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func (r *rig) attach(id string, takeover bool, since int64) *Session {
	r.t.Helper()
	s, err := r.Attach(r.ctx(), id, takeover, since)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// until reads up to a text.
func (r *rig) until(s *Session, want string) []byte {
	r.t.Helper()
	var got []byte
	for !bytes.Contains(got, []byte(want)) {
		p, err := s.Read(r.ctx())
		require.NoError(r.t, err, "after %q", got)
		got = append(got, p...)
	}
	return got
}

// rest reads to the end.
func (r *rig) rest(read func(context.Context) ([]byte, error)) []byte {
	r.t.Helper()
	var got []byte
	for {
		p, err := read(r.ctx())
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(r.t, err, "after %d bytes", len(got))
		got = append(got, p...)
	}
}
