package dispatch

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEveryOperationEndsOnce(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	const n = 2000
	for i := range n {
		op := []uint32{opNoop, opTest}[i%2]
		id := h.submit(op, object{"what": "wait"})
		if op == opTest {
			require.Equal(t, OK, h.b.Cancel(id))
			require.Equal(t, OK, h.b.Cancel(id))
		}
	}
	for id := uint64(1); id <= n; id++ {
		e := h.wait(id)
		if id%2 == 0 {
			require.Equal(t, kindStatus["canceled"], e.status, "%s", e.payload)
		} else {
			require.Equal(t, OK, e.status)
		}
	}
	require.Equal(t, OK, h.b.Cancel(1), "one that is over can be cancelled")
	require.False(t, h.readable(0), "the descriptor is quiet when all was taken")
	require.Zero(t, h.stats().Operations)
}

func TestTheDescriptorStaysReadableUntilAllIsTaken(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	const n = 3000
	for range n {
		h.submit(opNoop, object{})
	}
	eventually(t, "all are over", func() bool { return h.stats().Operations == 0 })
	turns := 0
	for len(h.done) < n {
		require.True(t, h.readable(0))
		h.turn()
		turns++
	}
	require.Greater(t, turns, 3, "a drain is bounded")
	require.False(t, h.readable(0))
}

func TestSubmitRefuses(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	require.Equal(t, ErrInvalid, h.b.Submit(1, 999, nil))
	wait := []byte(`{"what":"wait"}`)
	require.Equal(t, OK, h.b.Submit(1, opTest, wait))
	require.Equal(t, ErrExists, h.b.Submit(1, opTest, wait))
	for i := uint64(2); i <= maxLive; i++ {
		require.Equal(t, OK, h.b.Submit(i, opNoop, nil))
	}
	eventually(t, "they are over", func() bool { return h.stats().Operations == 1 })
	require.Equal(t, ErrAgain, h.b.Submit(maxLive+1, opNoop, nil), "results that nobody takes count")
	require.Equal(t, OK, h.b.Submit(maxLive+2, opStop, nil), "what frees something is never refused")
	h.turn()
	require.Equal(t, OK, h.b.Submit(maxLive+1, opNoop, nil))
	l.testHooks = false
	require.Equal(t, ErrInvalid, h.b.Submit(maxLive+3, opTest, wait))
}

func TestAPanicIsAnErrorOfItsOperationAlone(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	for _, what := range []string{"panic", "nil"} {
		p := h.fail(opTest, object{"what": what})
		require.Equal(t, ErrPanic, p.Code)
		require.EqualValues(t, "internal", p.Kind)
		require.Contains(t, p.Message, "fault in the sandbox library")
	}
	s := h.stats()
	require.EqualValues(t, 2, s.Panics)
	require.Contains(t, s.LastPanic, "provoke")
	h.run(opNoop, nil, nil)
}

func TestClosingABridgeCancelsAndFrees(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	id := h.submit(opExec, object{"sandbox": sb, "command": "yes 100000000", "stdout": follow, "stdin": true})
	h.stream(id, 1)
	h.submit(opTest, object{"what": "wait"})
	require.Equal(t, OK, l.CloseBridge(h.handle))
	require.Equal(t, OK, l.CloseBridge(h.handle))
	l.running.Wait()
	s := h.stats()
	require.Zero(t, s.Streams+s.Operations+s.Bridges)
	require.Equal(t, 1, s.Sandboxes, "sandboxes belong to the process")
	require.Equal(t, ErrClosed, h.b.Submit(99, opNoop, nil))
	require.Equal(t, ErrClosed, h.b.Cancel(id))
	_, code := h.b.Drain(make([]byte, MaxEvent))
	require.Equal(t, ErrClosed, code)
	require.Equal(t, -1, h.b.Descriptor())
	_, code = l.Bridge(h.handle)
	require.Equal(t, ErrBadHandle, code)
}

func TestNotifyComesForEachBatch(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	h.submit(opNoop, object{})
	require.True(t, h.readable(patience))
	called := make(chan struct{}, 1)
	h.b.SetNotify(func() {
		select {
		case called <- struct{}{}:
		default:
		}
	})
	for len(h.done) < 3000 {
		<-called // also for what was there before
		for h.readable(0) {
			h.turn()
			if len(h.done) == 1 {
				for range 2999 {
					h.submit(opNoop, object{})
				}
			}
		}
	}
	h.b.SetNotify(nil)
	select {
	case <-called: // from before
	default:
	}
	h.run(opNoop, nil, nil)
	require.Empty(t, called)
}

func TestManyBridgesAtOnce(t *testing.T) {
	l := newLibrary(t)
	var loops sync.WaitGroup
	for range 4 {
		h := newHost(t, l)
		_, sb := h.sandbox("{}")
		loops.Go(func() {
			for range 50 {
				ids := map[uint64]string{}
				for _, text := range []string{"a", "b", "c", "d"} {
					ids[h.submit(opExec, object{"sandbox": sb, "command": "echo " + text})] = text + "\n"
				}
				for id, want := range ids {
					if got := string(h.result(id).out); got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				}
			}
		})
	}
	loops.Wait()
}

func TestShutdownIsBoundedAndFinal(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	h.submit(opExec, object{"sandbox": sb, "command": "sleep 1000"})
	h.submit(opTest, object{"what": "wait"})
	begin := time.Now()
	require.Equal(t, OK, l.Shutdown(patience))
	require.Less(t, time.Since(begin), patience/2, "it ends with what it waits for")
	require.Equal(t, OK, l.Shutdown(patience))
	_, code := l.NewBridge()
	require.Equal(t, ErrClosed, code)
	_, err := l.NewProvider("mem", nil)
	require.Error(t, err)
	require.Equal(t, ErrClosed, h.b.Submit(99, opNoop, nil))
}

func TestShutdownDoesNotWaitForWhatDoesNotEnd(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	stuck := make(chan struct{})
	l.running.Add(1)
	l.safeGo(func() {
		defer l.running.Done()
		<-stuck
	})
	h.submit(opNoop, object{})
	require.Equal(t, OK, l.Shutdown(time.Millisecond))
	close(stuck)
	l.running.Wait()
}
