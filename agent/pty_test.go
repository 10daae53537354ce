package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// terminalRig adds what tests of terminals need.
func (r *rig) terminal(spec core.PTYSpec) core.PTYSession {
	r.t.Helper()
	s, err := r.OpenPTY(r.soon(), spec)
	require.NoError(r.t, err)
	return s
}

func (r *rig) soon() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *rig) until(s core.PTYSession, want string) string {
	r.t.Helper()
	var got []byte
	for !bytes.Contains(got, []byte(want)) {
		p, err := s.Read(r.soon())
		require.NoError(r.t, err, "after %q", got)
		got = append(got, p...)
	}
	return string(got)
}

func (r *rig) rest(s core.PTYSession) string {
	r.t.Helper()
	var got []byte
	for {
		p, err := s.Read(r.soon())
		if errors.Is(err, io.EOF) {
			return string(got)
		}
		require.NoError(r.t, err)
		got = append(got, p...)
	}
}

func TestTerminalRunsCommandsAsExecDoes(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		s := r.terminal(core.PTYSpec{Command: "stty size; pwd; echo $X; echo $TERM; tty >/dev/null && echo tty; exit 3", Cwd: "/", Env: map[string]string{"X": "a b"}, Rows: 50, Cols: 121})
		assert.Equal(t, "50 121\r\n/\r\na b\r\nxterm\r\ntty\r\n", r.rest(s))
		code, err := s.WaitExit(r.soon())
		require.NoError(t, err)
		assert.Equal(t, 3, code)
		require.NoError(t, s.Close(r.soon()))
		// A command that is longer than one argument can be.
		s = r.terminal(core.PTYSpec{Command: ": '" + strings.Repeat("x", 200_000) + "'; echo long", NoTerminal: true})
		assert.Equal(t, "long\n", r.rest(s))
		require.NoError(t, s.Close(r.soon()))
	})
}

func TestTerminalShellIsInteractiveAndTakesInterrupts(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		s := r.terminal(core.PTYSpec{})
		mark := marker()
		require.NoError(t, s.Write(r.soon(), []byte("sleep "+mark+"\n")))
		require.Eventually(t, func() bool { return len(alive(mark)) == 1 }, 10*time.Second, 5*time.Millisecond)
		require.NoError(t, s.Write(r.soon(), []byte("\x03")))
		require.Eventually(t, func() bool { return len(alive(mark)) == 0 }, 10*time.Second, 5*time.Millisecond)
		require.NoError(t, s.Write(r.soon(), []byte("echo al''ive; echo ${HISTFILE:-none}\n")))
		r.until(s, "alive\r\nnone")
		require.NoError(t, s.Close(r.soon()))
	})
}

func TestTerminalUserOwnsTheTerminal(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("an ordinary user can't change user")
		return
	}
	r := startAgent(t, transports[0], nil)
	s := r.terminal(core.PTYSpec{Command: "id -u; stat -c %u $(tty); echo x > $(tty)", User: "12345:6789", Cwd: "/"})
	assert.Equal(t, "12345\r\n12345\r\nx\r\n", r.rest(s))
	require.NoError(t, s.Close(r.soon()))
}

func TestTerminalThatCannotStartSaysWhy(t *testing.T) {
	r := startAgent(t, transports[0], nil)
	for want, spec := range map[string]core.PTYSpec{
		"/no/such/dir":         {Cwd: "/no/such/dir"},
		"nobody-of-that-name":  {User: "nobody-of-that-name"},
		"between 1 and 65535":  {Rows: 1},
		"must not contain NUL": {Command: "\x00"},
	} {
		_, err := r.OpenPTY(r.soon(), spec)
		assert.ErrorContains(t, err, want)
	}
}

func TestTerminalCloseEndsTheWholeTree(t *testing.T) {
	r := startAgent(t, transports[0], nil)
	for name, shape := range shapes {
		for _, pipes := range []bool{false, true} {
			mark := marker()
			s := r.terminal(core.PTYSpec{Command: fmt.Sprintf(shape, mark), NoTerminal: pipes})
			require.Eventually(t, func() bool { return len(alive(mark)) > 0 }, 10*time.Second, 5*time.Millisecond, name)
			require.NoError(t, s.Close(r.soon()))
			assert.Empty(t, alive(mark), name)
		}
	}
}

func TestTerminalOutlivesItsClient(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		other, err := Connect(r.soon(), r.options)
		require.NoError(t, err)
		s, err := other.OpenPTY(r.soon(), core.PTYSpec{Command: "stty -echo; echo one; read x; echo two-$x"})
		require.NoError(t, err)
		first := r.until(s, "one\r\n")
		other.Close()
		for err == nil {
			_, err = s.Read(r.soon())
		}
		assert.Equal(t, core.KindPTY, core.KindOf(err))
		again, err := r.AttachPTY(r.soon(), s.SessionID(), true, 0)
		require.NoError(t, err)
		assert.Equal(t, first, r.until(again, "one\r\n"))
		require.NoError(t, again.Write(r.soon(), []byte("here\n")))
		assert.Equal(t, "two-here\r\n", r.rest(again))
		require.NoError(t, again.Close(r.soon()))
	})
}

func TestTerminalOfASandboxThatEndsSaysWhy(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		s := r.terminal(core.PTYSpec{})
		require.NoError(t, r.Shutdown(r.soon()))
		var err error
		begun := time.Now()
		for err == nil {
			_, err = s.Read(r.soon())
		}
		assert.Equal(t, core.KindPTY, core.KindOf(err))
		assert.ErrorContains(t, err, "its owner stopped it")
		assert.Less(t, time.Since(begun), 5*time.Second)
	})
}

func TestTerminalStandsStillWithTheSandbox(t *testing.T) {
	r := startAgent(t, transports[0], nil)
	s := r.terminal(core.PTYSpec{Command: "head -c 20000000 /dev/zero | tr '\\0' x; printf END", NoTerminal: true})
	total := 0
	for total < 5_000_000 {
		p, err := s.Read(r.soon())
		require.NoError(t, err)
		total += len(p)
	}
	require.True(t, s.Suspend())
	require.NoError(t, r.Freeze(r.soon()))
	require.NoError(t, r.Thaw(r.soon()))
	require.NoError(t, s.Reattach(r.soon()))
	total += len(r.rest(s))
	assert.Equal(t, 20_000_003, total)
	require.NoError(t, s.Close(r.soon()))
}

func TestTerminalsLeaveNoDescriptors(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		agentFDs := func() int {
			d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
			if errors.Is(err, os.ErrPermission) {
				return 0
			}
			return len(d)
		}
		round := func() {
			for i := range 10 {
				s := r.terminal(core.PTYSpec{Command: "echo x", NoTerminal: i%2 == 0})
				r.rest(s)
				require.NoError(t, s.Close(r.soon()))
			}
			r.pool.shrink()
		}
		round()
		here, there := openFDs(), agentFDs()
		round()
		assert.Eventually(t, func() bool { return openFDs() <= here }, 5*time.Second, 5*time.Millisecond)
		assert.Eventually(t, func() bool { return agentFDs() <= there }, 5*time.Second, 5*time.Millisecond)
	})
}
