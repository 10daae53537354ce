package pty

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// records is a command that prints numbered lines of 64 bytes at a rate.
func records(n int, pause string) string {
	return fmt.Sprintf(`stty -onlcr 2>/dev/null; awk 'BEGIN { for (i = 0; i < %d; i++) { printf "%%063d\n", i; if (i %% 256 == 255) { fflush(); system("sleep %s") } } }'`, n, pause)
}

func recordsWant(n int) [sha256.Size]byte {
	h := sha256.New()
	for i := range n {
		fmt.Fprintf(h, "%063d\n", i)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func TestCutConnectionsLoseAndDoubleNothing(t *testing.T) {
	r := newRig(t)
	const n = 40_000
	s := r.open(core.PTYSpec{Command: records(n, "0")})
	h := sha256.New()
	total, next := 0, 100_000
	for {
		p, err := s.Read(r.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		h.Write(p)
		if total += len(p); total > next {
			next += 100_000
			r.cut()
		}
	}
	assert.Equal(t, 64*n, total)
	assert.Equal(t, recordsWant(n), [32]byte(h.Sum(nil)))
	code, err := s.WaitExit(r.ctx())
	require.NoError(t, err)
	assert.Equal(t, 0, code)
}

func TestPendingReadAndWriteSurviveACut(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty -echo; echo ready; read x; echo got-$x"})
	r.until(s, "ready\r\n")
	type answer struct {
		p   []byte
		err error
	}
	got := make(chan answer, 1)
	go func() { p, err := s.Read(r.ctx()); got <- answer{p, err} }()
	r.setDeaf(true)
	r.cut()
	require.NoError(t, s.Write(r.ctx(), []byte("line\n")))
	r.setDeaf(false)
	a := <-got
	require.NoError(t, a.err)
	assert.Equal(t, "got-line\r\n", string(a.p))
}

func TestInputSurvivesCuts(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "cat", NoTerminal: true})
	var want bytes.Buffer
	var reading sync.WaitGroup
	var got []byte
	reading.Go(func() { got = r.until(s, "END\n") })
	for i := range 3000 {
		line := fmt.Sprintf("line %06d %s\n", i, bytes.Repeat([]byte("."), i%300))
		want.WriteString(line)
		require.NoError(t, s.Write(r.ctx(), []byte(line)))
		if i%100 == 50 {
			cutLink(s)
		}
	}
	require.NoError(t, s.Write(r.ctx(), []byte("END\n")))
	reading.Wait()
	want.WriteString("END\n")
	assert.Equal(t, want.Len(), len(got))
	assert.True(t, bytes.Equal(want.Bytes(), got))
}

// Input that waits for a process must not keep its output from being taken.
func TestInputThatWaitsDoesNotHoldOutputBack(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "head -c 4000000 /dev/zero | tr '\\0' x; echo; wc -c", NoTerminal: true})
	const n = 400_000
	var writing sync.WaitGroup
	writing.Go(func() { assert.NoError(t, s.Write(r.ctx(), make([]byte, n))) })
	assert.Equal(t, 4_000_001, len(r.until(s, "\n")))
	writing.Wait()
	require.NoError(t, s.Close(r.ctx()))
}

// A process that prints as fast as it can must not overtake a client that comes back at once.
func TestFloodWaitsForAHolderThatLostItsConnection(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "head -c 30000000 /dev/zero | tr '\\0' x; printf END", NoTerminal: true})
	total, next := 0, 1_000_000
	for {
		p, err := s.Read(r.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if total += len(p); total > next {
			next += 1_000_000
			r.cut()
		}
	}
	assert.Equal(t, 30_000_003, total)
}

func TestSuspendMakesAFloodWait(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "head -c 30000000 /dev/zero | tr '\\0' x; printf END", NoTerminal: true})
	total, next := 0, 5_000_000 // the last one well before the end
	for {
		p, err := s.Read(r.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if total += len(p); total > next && next < 30_000_000 {
			next += 5_000_000
			require.True(t, s.Suspend())
			require.False(t, s.Suspend())
			require.NoError(t, s.Reattach(r.ctx()))
		}
	}
	assert.Equal(t, 30_000_003, total)
}

// The exit must not overtake output that a full buffer had no room for.
func TestDetachOfAFullBufferForgetsNoOutput(t *testing.T) {
	r := newRig(t)
	for _, leave := range []func(*Session){
		func(s *Session) { assert.NoError(t, s.Detach()) },
		func(s *Session) { assert.True(t, s.Suspend()) },
	} {
		s := r.open(core.PTYSpec{Command: "head -c 700000 /dev/zero | tr '\\0' x; printf END", NoTerminal: true})
		require.Eventually(t, func() bool {
			info, err := r.info(r.ctx(), s.SessionID())
			require.NoError(t, err)
			return info.ExitCode != nil
		}, soon, 5*time.Millisecond)
		leave(s)
		require.NoError(t, s.Reattach(r.ctx()))
		assert.Equal(t, 700_003, len(r.rest(s.Read)))
	}
}

func TestGapIsReportedWithItsSize(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "printf begin; read x; head -c 3000000 /dev/zero | tr '\\0' x; printf END; read x", NoTerminal: true})
	r.until(s, "begin")
	require.NoError(t, s.Write(r.ctx(), []byte("\n")))
	r.until(s, "xxxx")
	// While nobody is attached nothing holds the process back.
	require.NoError(t, s.Detach())
	seen := s.received
	require.Eventually(t, func() bool {
		info, err := r.info(r.ctx(), s.SessionID())
		require.NoError(t, err)
		return info.OutputOffset == 5+3_000_000+3
	}, soon, 5*time.Millisecond)
	require.NoError(t, s.Reattach(r.ctx()))
	require.NoError(t, s.Write(r.ctx(), []byte("\n")))
	total, gaps := int64(0), int64(0)
	var last []byte
	for {
		p, err := s.Read(r.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		var gap *core.PTYGap
		if errors.As(err, &gap) {
			assert.Equal(t, core.KindPTY, core.KindOf(err))
			assert.Equal(t, seen, gap.At)
			gaps += gap.Bytes
			continue
		}
		require.NoError(t, err)
		total += int64(len(p))
		last = p
	}
	assert.Equal(t, int64(3_000_008-1<<20)-seen, gaps)
	assert.GreaterOrEqual(t, total, int64(1<<20))
	assert.True(t, bytes.HasSuffix(last, []byte("END")))
	offset, _ := s.ReplayOffset()
	assert.Equal(t, int64(3_000_008-1<<20), offset)
}

func TestSessionIsGivenUpWhenNobodyAnswers(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	r.setDeaf(true)
	r.cut()
	var err error
	for err == nil {
		_, err = s.Read(r.ctx())
	}
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.ErrorIs(t, err, errDeaf)
	r.setDeaf(false)
}

func TestSandboxThatIsGoneIsSaidAtOnce(t *testing.T) {
	r := newRig(t)
	r.Diagnose = func(context.Context) error { return errors.New("the container was removed") }
	r.times.retry = []time.Duration{time.Hour}
	s := r.open(core.PTYSpec{})
	r.setDeaf(true)
	r.cut()
	var err error
	for err == nil {
		_, err = s.Read(r.ctx())
	}
	assert.ErrorContains(t, err, "the container was removed")
	assert.True(t, s.Closed())
	r.setDeaf(false)
}

func TestAServerThatCannotAnswerIsNotWaitedFor(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "cat"})
	r.times.answer = 10 * time.Millisecond
	r.Dial = func(context.Context) (net.Conn, error) { // nobody answers
		mine, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		return mine, nil
	}
	var asked atomic.Int32
	r.Silent = func(context.Context) error {
		if asked.Add(1)%2 == 1 {
			return nil
		}
		return errors.New("it stands still")
	}
	for name, call := range map[string]func() error{
		"create": func() error { _, err := r.Open(r.ctx(), core.PTYSpec{Rows: 24, Cols: 80}); return err },
		"attach": func() error { _, err := r.Attach(r.ctx(), s.SessionID(), true, 0); return err },
		"close":  func() error { return s.Close(r.ctx()) },
	} {
		err := call()
		assert.Equal(t, core.KindPTY, core.KindOf(err), name)
		assert.ErrorContains(t, err, "it stands still", name)
		assert.ErrorContains(t, err, name)
	}
	assert.EqualValues(t, 6, asked.Load())
}

func TestCloseDuringAReconnectDoesNotWait(t *testing.T) {
	r := newRig(t)
	r.times.retry = []time.Duration{time.Hour}
	s := r.open(core.PTYSpec{})
	r.setDeaf(true)
	r.cut()
	require.Eventually(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.link == nil
	}, soon, time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	assert.Error(t, s.Close(ctx), "the server could not be told")
	_, err := s.Read(r.ctx())
	assert.ErrorContains(t, err, "closed")
	r.setDeaf(false)
}

// onTheWay waits for a process to be held back and gives how much it has printed by then.
func (r *rig) onTheWay(s *Session) int64 {
	last, same := int64(-1), 0
	require.Eventually(r.t, func() bool {
		info, err := r.info(r.ctx(), s.SessionID())
		require.NoError(r.t, err)
		if same++; info.OutputOffset != last || last == 0 {
			last, same = info.OutputOffset, 0
		}
		return same == 6
	}, soon, 50*time.Millisecond)
	return last
}

func TestReaderThatRestsHoldsTheProcessBack(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "head -c 4000000 /dev/zero | tr '\\0' x; printf END", NoTerminal: true})
	// What is on the way is bounded: what the server retains and what the reader's side buffers.
	assert.Less(t, r.onTheWay(s), int64(2_000_000))
	s.mu.Lock()
	held := s.out[core.Stdout].size
	s.mu.Unlock()
	assert.LessOrEqual(t, held, maxBuffered)
	assert.Equal(t, 4_000_003, len(r.rest(s.Read)))
}

// All of a flood that is on the way is still shown after an interrupt, so it has to be little. Nothing of it gets lost.
func TestLittleOfATerminalsFloodIsOnTheWay(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty raw -echo; head -c 4000000 /dev/zero | tr '\\0' x; printf END"})
	assert.LessOrEqual(t, r.onTheWay(s), int64(128<<10+maxBuffered))
	// Coming back with all of the ring to be replayed does not change that.
	require.NoError(t, s.Detach())
	assert.Greater(t, r.onTheWay(s), int64(1<<20))
	s.mu.Lock()
	seen := s.received
	s.mu.Unlock()
	require.NoError(t, s.Reattach(r.ctx()))
	total := int64(0)
	for {
		p, err := s.Read(r.ctx())
		if errors.Is(err, io.EOF) {
			break
		}
		var gap *core.PTYGap
		if errors.As(err, &gap) {
			assert.GreaterOrEqual(t, gap.At, seen)
			total += gap.Bytes
			continue
		}
		require.NoError(t, err)
		total += int64(len(p))
	}
	assert.Equal(t, int64(4_000_003), total)
}
