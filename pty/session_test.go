package pty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestShellEchoesAndAnswers(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	require.NoError(t, s.Write(r.ctx(), []byte("echo hi-$((6*7))\n")))
	got := r.until(s, "hi-42\r\n")
	assert.Contains(t, string(got), "echo hi-$((6*7))\r\n")
	assert.Equal(t, "pty", s.Mode())
	require.NoError(t, s.Write(r.ctx(), []byte("exit 7\n")))
	r.rest(s.Read)
	code, err := s.WaitExit(r.ctx())
	require.NoError(t, err)
	assert.Equal(t, 7, code)
	assert.True(t, s.Closed())
	_, err = s.Read(r.ctx())
	assert.ErrorIs(t, err, io.EOF)
	_, err = s.ReadStderr(r.ctx())
	assert.ErrorIs(t, err, io.EOF)
	assert.Equal(t, core.KindPTY, core.KindOf(s.Write(r.ctx(), []byte("x"))))
	assert.NoError(t, s.Resize(r.ctx(), 30, 90), "whoever resizes can't know that the process has just ended")
	require.NoError(t, s.Close(r.ctx()))
	assert.Equal(t, core.KindPTY, core.KindOf(s.Resize(r.ctx(), 30, 90)))
}

func TestSizeIsThereBeforeTheProgram(t *testing.T) {
	r := newRig(t)
	for range 4 {
		s := r.open(core.PTYSpec{Command: "stty size", Rows: 50, Cols: 121})
		assert.Equal(t, "50 121\r\n", string(r.rest(s.Read)))
	}
}

func TestResizeReachesTheTerminal(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done"})
	r.until(s, "ready")
	require.NoError(t, s.Resize(r.ctx(), 33, 99))
	r.until(s, "33 99\r\n")
	assert.Equal(t, core.KindInvalid, core.KindOf(s.Resize(r.ctx(), 0, 80)))
	assert.Equal(t, core.KindInvalid, core.KindOf(s.Resize(r.ctx(), 70000, 80)))
}

func TestInterruptEndsTheForegroundCommandOnly(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	require.NoError(t, s.Write(r.ctx(), []byte("sh -c 'echo g\"\"o; exec sleep 86421'\n")))
	r.until(s, "go\r\n") // printed by the foreground job itself
	require.NoError(t, s.Write(r.ctx(), []byte("\x03")))
	require.NoError(t, s.Write(r.ctx(), []byte("echo al''ive\n")))
	r.until(s, "alive")
}

func TestPipesKeepTheStreamsApart(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "echo out; echo err >&2; tty; read x; echo got-$x; exit 9", NoTerminal: true})
	assert.Equal(t, "pipe", s.Mode())
	require.NoError(t, s.Write(r.ctx(), []byte("line\n")))
	var stderr []byte
	var wg sync.WaitGroup
	wg.Go(func() { stderr = r.rest(s.ReadStderr) })
	assert.Equal(t, "out\nnot a tty\ngot-line\n", string(r.rest(s.Read)))
	wg.Wait()
	assert.Equal(t, "err\n", string(stderr))
	code, err := s.WaitExit(r.ctx())
	require.NoError(t, err)
	assert.Equal(t, 9, code)
}

func TestSignalsReachTheGroup(t *testing.T) {
	r := newRig(t)
	for name, want := range map[string]int{"SIGINT": 130, "SIGTERM": 143, "SIGKILL": 137, "SIGQUIT": 131, "SIGHUP": 129} {
		for _, pipes := range []bool{false, true} {
			s := r.open(core.PTYSpec{Command: "echo go; exec sleep 86422", NoTerminal: pipes})
			r.until(s, "go")
			require.NoError(t, s.Signal(r.ctx(), name))
			code, err := s.WaitExit(r.ctx())
			require.NoError(t, err)
			assert.Equal(t, want, code, name)
		}
	}
	s := r.open(core.PTYSpec{})
	err := s.Signal(r.ctx(), "SIGUSR1")
	assert.Equal(t, core.KindInvalid, core.KindOf(err))
	assert.ErrorContains(t, err, "supports only")
}

func TestTailArrivesBeforeTheEnd(t *testing.T) {
	r := newRig(t)
	for _, n := range []int{100, 5000, 200_000} {
		for _, pipes := range []bool{false, true} {
			for range 10 {
				s := r.open(core.PTYSpec{Command: fmt.Sprintf("head -c %d /dev/zero | tr '\\0' z; printf END; exit 3", n), NoTerminal: pipes})
				got := r.rest(s.Read)
				code, err := s.WaitExit(r.ctx())
				require.NoError(t, err)
				assert.Equal(t, 3, code)
				require.Equal(t, n+3, len(got))
				assert.True(t, bytes.HasSuffix(got, []byte("zEND")))
				require.NoError(t, s.Close(r.ctx()))
			}
		}
	}
}

func TestBackgroundProcessDoesNotHoldTheEnd(t *testing.T) {
	r := newRig(t)
	for _, pipes := range []bool{false, true} {
		s := r.open(core.PTYSpec{Command: "(trap '' HUP; exec sleep 5) & echo done; exit 4", NoTerminal: pipes})
		begun := time.Now()
		assert.Equal(t, "done", strings.TrimSpace(string(r.rest(s.Read))))
		assert.Less(t, time.Since(begun), 4*time.Second)
	}
}

func TestManyWritesAndResizesLoseNothing(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty raw -echo; echo ready; head -c 3000 | wc -c"})
	r.until(s, "ready")
	var wg sync.WaitGroup
	for i := range 300 {
		wg.Go(func() { assert.NoError(t, s.Write(r.ctx(), []byte("abcdefghij"))) })
		if i%6 == 0 {
			wg.Go(func() { assert.NoError(t, s.Resize(r.ctx(), 20+i%20, 80)) })
		}
	}
	wg.Wait()
	assert.Contains(t, string(r.rest(s.Read)), "3000")
}

func TestBigInputArrivesWhole(t *testing.T) {
	r := newRig(t)
	const n = 3 << 20
	s := r.open(core.PTYSpec{Command: fmt.Sprintf("head -c %d | cksum", n), NoTerminal: true})
	require.NoError(t, s.Write(r.ctx(), bytes.Repeat([]byte("0123456789abcdef"), n/16)))
	got := r.rest(s.Read)
	assert.Contains(t, string(got), fmt.Sprint(n))
}

func TestWriteToAProcessThatDoesNotReadEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "exec sleep 86423", NoTerminal: true})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	err := s.Write(ctx, make([]byte, 16<<20))
	assert.Equal(t, core.KindTimeout, core.KindOf(err))
	// The connection did not survive that; the session does.
	require.NoError(t, s.Signal(r.ctx(), "SIGTERM"))
	code, err := s.WaitExit(r.ctx())
	require.NoError(t, err)
	assert.Equal(t, 143, code)
}

func TestContextEndsAReadWithoutHarm(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "read x; echo $x"})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := s.Read(ctx)
	assert.Equal(t, core.KindTimeout, core.KindOf(err))
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = s.WaitExit(ctx)
	assert.Equal(t, core.KindTimeout, core.KindOf(err))
	require.NoError(t, s.Write(r.ctx(), []byte("later\n")))
	assert.Equal(t, "later\r\nlater\r\n", string(r.rest(s.Read)))
}

func TestDetachAndReattachLoseNothing(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty -onlcr -echo; i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo n$i; done; read x; echo end"})
	got := r.until(s, "n100\n")
	require.NoError(t, s.Detach())
	require.NoError(t, s.Detach())
	assert.False(t, s.Closed())
	_, err := s.Read(r.ctx())
	assert.ErrorContains(t, err, "detached")
	assert.Equal(t, core.KindPTY, core.KindOf(s.Write(r.ctx(), []byte("\n"))))
	require.NoError(t, s.Reattach(r.ctx()))
	require.NoError(t, s.Reattach(r.ctx()))
	require.NoError(t, s.Write(r.ctx(), []byte("\n")))
	got = append(got, r.rest(s.Read)...)
	assert.Equal(t, numbered(300)+"end\n", string(got))
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "n%d\n", i+1)
	}
	return b.String()
}

func TestAttachReplaysFromAnOffset(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "stty -onlcr -echo; i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo n$i; done; read x; echo end"})
	got := r.until(s, "n300\n")
	for _, since := range []int64{0, 1, 500, int64(len(got))} {
		a := r.attach(s.SessionID(), true, since)
		require.NoError(t, a.Write(r.ctx(), nil))
		if since < int64(len(got)) {
			offset, replayed := a.ReplayOffset()
			assert.True(t, replayed)
			assert.Equal(t, since, offset)
			assert.Equal(t, string(got[since:]), string(r.until(a, "n300\n")))
		} else {
			_, replayed := a.ReplayOffset()
			assert.False(t, replayed)
		}
	}
	last := r.attach(s.SessionID(), true, 10)
	require.NoError(t, last.Write(r.ctx(), []byte("\n")))
	assert.Equal(t, (numbered(300) + "end\n")[10:], string(r.rest(last.Read)))
}

func TestAttachFromBeyondTheEndLosesNothingLater(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "echo zero; read x; sleep 0.1; echo one; read x; echo two", NoTerminal: true})
	r.until(s, "zero\n")
	a := r.attach(s.SessionID(), true, 1<<30)
	require.NoError(t, a.Write(r.ctx(), []byte("\n")))
	require.NoError(t, a.Detach())
	require.Eventually(t, func() bool {
		info, err := r.info(r.ctx(), s.SessionID())
		return err == nil && info.OutputOffset == int64(len("zero\none\n"))
	}, soon, time.Millisecond)
	require.NoError(t, a.Reattach(r.ctx()))
	require.NoError(t, a.Write(r.ctx(), []byte("\n")))
	assert.Equal(t, "one\ntwo\n", string(r.rest(a.Read)))
}

func TestASessionThatWasEndedWhileDetachedHasEnded(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "cat"})
	a := r.attach(s.SessionID(), true, 0)
	require.NoError(t, a.Detach())
	require.NoError(t, s.Close(r.ctx()))
	require.False(t, a.Closed())
	for range 2 {
		require.ErrorContains(t, a.Reattach(r.ctx()), "not found")
	}
	assert.True(t, a.Closed())
	_, err := a.WaitExit(r.ctx())
	assert.ErrorContains(t, err, "not found")
	assert.Equal(t, core.KindPTY, core.KindOf(err))
}

func TestDetachLosesNoInput(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "cat", NoTerminal: true})
	var want strings.Builder
	for i := range 50 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		require.NoError(t, s.Write(r.ctx(), []byte(line)))
		if i%2 == 0 {
			require.NoError(t, s.Detach())
		} else {
			require.True(t, s.Suspend())
		}
		require.NoError(t, s.Reattach(r.ctx()))
	}
	require.NoError(t, s.Write(r.ctx(), []byte("END\n")))
	assert.Equal(t, want.String()+"END\n", string(r.until(s, "END\n")))
}

func TestTakeoverEvictsTheHolder(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	_, err := r.Attach(r.ctx(), s.SessionID(), false, 0)
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.ErrorContains(t, err, "already has an attached client")
	begun := time.Now()
	second := r.attach(s.SessionID(), true, 0)
	for err = nil; err == nil; _, err = s.Read(r.ctx()) {
	}
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.ErrorContains(t, err, "taken over")
	assert.Less(t, time.Since(begun), 5*time.Second)
	_, err = s.WaitExit(r.ctx())
	assert.ErrorContains(t, err, "taken over")
	assert.ErrorContains(t, s.Write(r.ctx(), []byte("x")), "taken over")
	require.NoError(t, second.Write(r.ctx(), []byte("echo se''cond\n")))
	r.until(second, "second")
	// An attached session's close leaves the process to its owner.
	require.NoError(t, second.Close(r.ctx()))
	third := r.attach(s.SessionID(), true, 0)
	r.until(third, "second")
}

func TestExitIsKeptForALateClient(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "sleep 0.2; printf late; exit 5"})
	id := s.SessionID()
	require.NoError(t, s.Detach())
	require.Eventually(t, func() bool {
		info, err := r.info(r.ctx(), id)
		require.NoError(t, err)
		return info.ExitCode != nil
	}, soon, 5*time.Millisecond)
	require.NoError(t, s.Reattach(r.ctx()))
	assert.Equal(t, "late", string(r.rest(s.Read)))
	code, err := s.WaitExit(r.ctx())
	require.NoError(t, err)
	assert.Equal(t, 5, code)
	again := r.attach(id, false, 0)
	assert.Equal(t, "late", string(r.rest(again.Read)))
	code, err = again.WaitExit(r.ctx())
	require.NoError(t, err)
	assert.Equal(t, 5, code)
}

func TestCloseEndsTheProcessAndUnblocksReaders(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{Command: "echo $$; exec sleep 86424"})
	r.until(s, "\n")
	errs := make(chan error, 3)
	go func() { _, err := s.Read(context.Background()); errs <- err }()
	go func() { _, err := s.ReadStderr(context.Background()); errs <- err }()
	go func() { _, err := s.WaitExit(context.Background()); errs <- err }()
	require.NoError(t, s.Close(r.ctx()))
	require.NoError(t, s.Close(r.ctx()))
	for range 3 {
		err := <-errs
		assert.Equal(t, core.KindPTY, core.KindOf(err))
		assert.ErrorContains(t, err, "closed")
	}
	_, err := r.Attach(r.ctx(), s.SessionID(), true, 0)
	assert.ErrorContains(t, err, "not found")
	assert.ErrorContains(t, s.Reattach(r.ctx()), "closed")
	assert.ErrorContains(t, s.Detach(), "closed")
}

func TestAbandonGivesTheReason(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	errs := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			_, err = s.Read(context.Background())
		}
		errs <- err
	}()
	s.Abandon(errors.New("the sandbox was stopped"))
	err := <-errs
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.ErrorContains(t, err, "the sandbox was stopped")
	assert.True(t, s.Closed())
}

func TestStartThatFailsSaysWhy(t *testing.T) {
	r := newRig(t)
	_, err := r.Open(r.ctx(), core.PTYSpec{Cwd: "/no/such/dir"})
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.ErrorContains(t, err, "/no/such/dir")
	assert.ErrorContains(t, err, "pty create")
	for _, bad := range []core.PTYSpec{{Rows: -1, Cols: 5}, {Rows: 5}, {Command: "a\x00"}, {Env: map[string]string{"": "x"}}} {
		_, err := r.Open(r.ctx(), bad)
		assert.Equal(t, core.KindInvalid, core.KindOf(err), "%v", bad)
	}
}
