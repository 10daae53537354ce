package pty

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// A holder that lost its connection does not know yet that somebody else has the session. When it comes back it is
// told, instead of taking the session away again.
func TestHolderThatComesBackDoesNotUndoATakeover(t *testing.T) {
	r := newRig(t)
	first := r.open(core.PTYSpec{Command: "stty -echo; echo ready; while read x; do echo got-$x; done"})
	r.until(first, "ready")
	for _, takeover := range []bool{true, false} {
		away := make(chan struct{})
		lonely := *r.Client
		lonely.Dial = func(ctx context.Context) (net.Conn, error) {
			select {
			case <-away:
				return r.Dial(ctx)
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		lost := r.attach(first.SessionID(), true, 0)
		lost.mu.Lock()
		lost.c = &lonely
		lost.mu.Unlock()
		cutLink(lost)
		require.Eventually(t, func() bool {
			lost.mu.Lock()
			defer lost.mu.Unlock()
			return lost.link == nil
		}, soon, time.Millisecond)
		var next *Session
		require.Eventually(t, func() bool { // until the server has seen the loss too, it refuses whoever does not take over
			var err error
			next, err = r.Attach(r.ctx(), first.SessionID(), takeover, 0)
			return err == nil
		}, soon, 5*time.Millisecond)
		close(away)
		_, err := lost.WaitExit(r.ctx())
		require.ErrorContains(t, err, "taken over")
		require.NoError(t, next.Write(r.ctx(), []byte("me\n")))
		r.until(next, "got-me")
		// To ask for it is something else.
		require.NoError(t, next.Detach())
		require.NoError(t, next.Reattach(r.ctx()))
		require.NoError(t, next.Close(r.ctx()))
	}
}

func TestConcurrentTakeoversLeaveOneHolder(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty -echo; echo ready; while read x; do echo got-$x; done"})
	r.until(s, "ready")
	var mu sync.Mutex
	var all []*Session
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a, err := r.Attach(r.ctx(), s.SessionID(), true, 0)
			if err != nil {
				assert.ErrorContains(t, err, "taken over")
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, a)
		})
	}
	wg.Wait()
	defer func() {
		for _, a := range all {
			assert.NoError(t, a.Close(r.ctx()))
		}
	}()
	var alive []*Session
	require.Eventually(t, func() bool {
		alive = nil
		for _, a := range all {
			if !a.Closed() {
				alive = append(alive, a)
			}
		}
		return len(alive) == 1
	}, soon, time.Millisecond)
	require.NoError(t, alive[0].Write(r.ctx(), []byte("me\n")))
	r.until(alive[0], "got-me")
}

// cutLink breaks the connection of one session.
func cutLink(s *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link != nil {
		_ = s.link.conn.NetConn().Close()
	}
}

// storm moves a session about while its output is read, and gives all of it.
func storm(t *testing.T, r *rig, s *Session, seed uint64, moves int) []byte {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var got []byte
	for made := 0; ; {
		p, err := s.Read(r.ctx())
		if errors.Is(err, io.EOF) {
			assert.GreaterOrEqual(t, made, moves/2, "the output ended before the storm")
			return got
		}
		if !assert.NoError(t, err) {
			return nil
		}
		got = append(got, p...)
		if made == moves || rnd.IntN(2) > 0 {
			continue
		}
		made++
		switch rnd.IntN(4) {
		case 0:
			if err := s.Detach(); err != nil {
				assert.True(t, s.Closed(), "%v", err) // the process has ended
				continue
			}
			time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond)
			if !assert.NoError(t, s.Reattach(r.ctx())) {
				return nil
			}
		case 1:
			old := s
			s, err = r.Attach(r.ctx(), old.SessionID(), true, int64(len(got)))
			if !assert.NoError(t, err) {
				return nil
			}
			ended := time.Now()
			for err == nil {
				_, err = old.Read(r.ctx())
			}
			assert.True(t, core.KindOf(err) == core.KindPTY || errors.Is(err, io.EOF), "%v", err) // it may have seen the exit just before
			assert.Less(t, time.Since(ended), 5*time.Second)
		case 2:
			cutLink(s)
		case 3:
			if !s.Suspend() {
				assert.True(t, s.Closed())
				continue
			}
			if !assert.NoError(t, s.Reattach(r.ctx())) {
				return nil
			}
		}
	}
}

func TestReattachStormLosesAndDoublesNothing(t *testing.T) {
	r := newRig(t)
	const n = 16 << 10 // a MiB in 64 steps
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for i := range uint64(4) {
		s := r.open(core.PTYSpec{Command: records(n, "0.012"), NoTerminal: i%2 == 1})
		wg.Go(func() {
			got := storm(t, r, s, seed+i, 25)
			assert.Equal(t, 64*n, len(got))
			assert.Equal(t, recordsWant(n), sha256.Sum256(got))
		})
	}
	wg.Wait()
}
