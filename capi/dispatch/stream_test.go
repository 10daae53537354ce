package dispatch

import (
	"bytes"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFifoAgainstABuffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40_000).Draw(t, "limit")
		f := fifo{limit: limit}
		var model bytes.Buffer
		next := byte(0)
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			size := rapid.IntRange(0, 30_000).Draw(t, "size")
			if rapid.Bool().Draw(t, "put") {
				p := make([]byte, size)
				for i := range p {
					next++
					p[i] = next
				}
				n := f.put(p)
				if want := min(size, limit-model.Len()); n != want {
					t.Fatalf("took %d of %d bytes, want %d", n, size, want)
				}
				model.Write(p[:n])
				next -= byte(size - n)
			} else {
				got := make([]byte, size)
				want := make([]byte, size)
				n := f.get(got)
				m, _ := model.Read(want)
				if !bytes.Equal(got[:n], want[:m]) {
					t.Fatal("other bytes came out than went in")
				}
			}
			if f.n != model.Len() || len(f.buf) > max(limit, firstRing) {
				t.Fatalf("%d bytes in %d, want %d", f.n, len(f.buf), model.Len())
			}
		}
	})
}

// edges counts and signals the edges of a ring.
type edges struct {
	n  atomic.Int64
	ch chan struct{}
}

func newEdges() *edges { return &edges{ch: make(chan struct{}, 1)} }

func (e *edges) edge() {
	e.n.Add(1)
	select {
	case e.ch <- struct{}{}:
	default:
	}
}

func TestAFullRingHoldsItsWriterAndNoMore(t *testing.T) {
	r, e := newOutRing(ringSize), newEdges()
	r.edge = e.edge
	wrote := make(chan error, 1)
	go func() { wrote <- r.Write(make([]byte, ringSize+1)) }()
	<-e.ch
	eventually(t, "the ring fills", func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.data.n == ringSize })
	require.Empty(t, wrote, "the writer waits")
	require.EqualValues(t, 1, e.n.Load(), "one edge until a read found nothing")
	n, code := r.read(make([]byte, 1))
	require.Equal(t, OK, code)
	require.Equal(t, 1, n)
	require.NoError(t, <-wrote)
	require.EqualValues(t, 1, e.n.Load())
}

func TestAbortAndCloseFreeAWriter(t *testing.T) {
	for name, end := range map[string]func(*outRing){"abort": (*outRing).abort, "close": (*outRing).close, "end": func(r *outRing) { r.end(nil) }} {
		t.Run(name, func(t *testing.T) {
			r, e := newOutRing(ringSize), newEdges()
			r.edge = e.edge
			wrote := make(chan error, 1)
			go func() { wrote <- r.Write(make([]byte, 2*ringSize)) }()
			<-e.ch
			end(r)
			require.Error(t, <-wrote)
			require.Error(t, r.Write([]byte("late")))
		})
	}
}

func TestAnAbortedRingCanStillBeRead(t *testing.T) {
	r, e := newOutRing(ringSize), newEdges()
	r.edge = e.edge
	require.NoError(t, r.Write([]byte("kept")))
	r.abort()
	r.end(nil)
	p := make([]byte, 10)
	n, code := r.read(p)
	require.Equal(t, OK, code)
	require.Equal(t, "kept", string(p[:n]))
	_, code = r.read(p)
	require.Equal(t, EOF, code)
}

func TestTheEndOfAnIdleRingIsAnEdge(t *testing.T) {
	r, e := newOutRing(ringSize), newEdges()
	r.edge = e.edge
	n, code := r.read(make([]byte, 1))
	require.Zero(t, n)
	require.Equal(t, OK, code)
	r.end(nil)
	r.end(nil)
	require.EqualValues(t, 1, e.n.Load())
}

// A reader that only ever reads after an edge gets everything: no edge is lost.
func TestNoEdgeIsLost(t *testing.T) {
	r, e := newOutRing(ringSize), newEdges()
	r.edge = e.edge
	want, got := sha256.New(), sha256.New()
	var writer sync.WaitGroup
	writer.Go(func() {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 3000 {
			p := make([]byte, 1+rng.IntN(3000))
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			want.Write(p)
			if r.Write(p) != nil {
				return
			}
		}
		r.end(nil)
	})
	buf := make([]byte, 10_000)
	for over := false; !over; {
		<-e.ch
		for {
			n, code := r.read(buf)
			got.Write(buf[:n])
			if code == EOF {
				over = true
				break
			}
			if n == 0 {
				break
			}
		}
	}
	writer.Wait()
	require.Equal(t, want.Sum(nil), got.Sum(nil))
}

func TestInputReachesTheCommandWhole(t *testing.T) {
	r, e := newInRing(), newEdges()
	r.edge = e.edge
	data := bytes.Repeat([]byte("0123456789"), 300_000)
	read := make(chan []byte, 1)
	go func() {
		all, err := io.ReadAll(r)
		if err != nil {
			all = nil
		}
		read <- all
	}()
	for left := data; len(left) > 0; {
		n, code := r.write(left)
		require.Equal(t, OK, code)
		if left = left[n:]; len(left) > 0 {
			<-e.ch
		}
	}
	require.Equal(t, OK, r.closeWrite())
	require.True(t, bytes.Equal(data, <-read))
	_, code := r.write([]byte("late"))
	require.Equal(t, ErrClosed, code)
}

func TestAnInputThatIsReadNoMoreWakesItsWriter(t *testing.T) {
	r, e := newInRing(), newEdges()
	r.edge = e.edge
	n, code := r.write(make([]byte, ringSize+1))
	require.Equal(t, OK, code)
	require.Equal(t, ringSize, n)
	r.stop()
	<-e.ch
	_, code = r.write([]byte("x"))
	require.Equal(t, ErrClosed, code)
	_, err := r.Read(make([]byte, 1))
	require.Error(t, err)
}

func TestStoppingFreesABlockedReader(t *testing.T) {
	r := newInRing()
	r.edge = func() {}
	read := make(chan error, 1)
	go func() {
		_, err := r.Read(make([]byte, 1))
		read <- err
	}()
	r.stop()
	require.Error(t, <-read)
}
