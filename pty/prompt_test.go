package pty

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// diverted collects output as a host does: what a Read gives, and what arrives while one waits.
type diverted struct {
	mu   sync.Mutex
	got  []byte
	past int // of it, what no Read gave
	more chan struct{}
}

func (d *diverted) add(p []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.got = append(d.got, p...)
	select {
	case d.more <- struct{}{}:
	default:
	}
}

// take takes at most 100 bytes at once, so that Reads get something too.
func (d *diverted) take(p []byte) int {
	n := min(len(p), 100)
	d.add(p[:n])
	d.mu.Lock()
	defer d.mu.Unlock()
	d.past += n
	return n
}

func (d *diverted) until(t *testing.T, want string) string {
	t.Helper()
	for late := time.After(soon); ; {
		d.mu.Lock()
		got := string(d.got)
		d.mu.Unlock()
		if strings.Contains(got, want) {
			return got
		}
		select {
		case <-d.more:
		case <-late:
			require.FailNow(t, "no output", "%q is not in the last of %d bytes", want, len(got))
		}
	}
}

func divert(r *rig, s *Session) *diverted {
	d := &diverted{more: make(chan struct{}, 1)}
	s.Divert(core.Stdout, d.take)
	ctx := r.ctx()
	go func() {
		for {
			p, err := s.Read(ctx)
			if err != nil {
				return
			}
			d.add(p)
		}
	}()
	return d
}

func TestOutputIsDivertedInOrder(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty raw -echo; echo ready; cat"})
	d := divert(r, s)
	d.until(t, "ready")
	for i := range 200 {
		key := fmt.Sprintf("<%d>", i)
		if i%2 == 0 {
			require.NoError(t, s.Write(r.ctx(), []byte(key)))
		} else {
			for n, err := 0, error(nil); n == 0; {
				n, err = s.TryWrite([]byte(key))
				require.NoError(t, err)
			}
		}
		d.until(t, key)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var want strings.Builder
	for i := range 200 {
		fmt.Fprintf(&want, "<%d>", i)
	}
	assert.Contains(t, string(d.got), want.String())
	assert.NotZero(t, d.past)
}

func TestAFloodIsDivertedInOrder(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty raw -echo; seq 30000; echo over; cat"})
	got := divert(r, s).until(t, "over\n")
	var want strings.Builder
	for i := range 30000 {
		fmt.Fprintf(&want, "%d\n", i+1)
	}
	assert.Equal(t, want.String()+"over\n", got)
}

// TestKeysSurviveCuts types without waiting while connections are cut: each key arrives once, in its place.
func TestKeysSurviveCuts(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty raw -echo; echo ready; cat"})
	d := divert(r, s)
	d.until(t, "ready")
	var want strings.Builder
	for i := range 2000 {
		key := fmt.Sprintf("%d.", i)
		want.WriteString(key)
		n, err := s.TryWrite([]byte(key))
		require.NoError(t, err)
		if n == 0 {
			require.NoError(t, s.Write(r.ctx(), []byte(key)))
		}
		if i%200 == 99 {
			r.cut()
		}
	}
	d.until(t, "1999.")
	d.mu.Lock()
	defer d.mu.Unlock()
	assert.Contains(t, string(d.got), want.String())
}

func TestNothingIsTriedOnASessionThatTakesNothing(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "cat"})
	require.NoError(t, s.Detach())
	n, err := s.TryWrite([]byte("x"))
	require.NoError(t, err)
	assert.Zero(t, n)
	require.NoError(t, s.Reattach(r.ctx()))
	require.NoError(t, s.Close(r.ctx()))
	n, err = s.TryWrite([]byte("x"))
	require.NoError(t, err)
	assert.Zero(t, n)
}
