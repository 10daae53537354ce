package dispatch

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestCollectedOutputs(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	for _, size := range []int{0, 1, inlineOutput, inlineOutput + 1, 3 << 20} {
		r := h.result(h.submit(opExec, object{"sandbox": sb, "command": fmt.Sprintf("yes %d ab; yes %d é >&2; exit 3", size, size)}))
		require.Equal(t, 3, r.ExitCode)
		require.Equal(t, strings.Repeat("ab\n", size/3+1)[:size], string(r.out))
		require.Equal(t, strings.Repeat("é\n", size/3+1)[:size], string(r.err))
		require.True(t, r.Stdout.ASCII)
		require.Equal(t, size == 0, r.Stderr.ASCII)
		require.Equal(t, size > inlineOutput, r.Stdout.Stream != 0)
	}
	require.Zero(t, h.stats().Streams)
}

func TestOutputOverTheLimitSaysSo(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox(`{"max_output_bytes": 1000}`)
	r := h.result(h.submit(opExec, object{"sandbox": sb, "command": "yes 5000"}))
	require.EqualValues(t, 4000, r.Stdout.Omitted)
	require.Contains(t, string(r.out), "4000 bytes omitted")
}

func TestATimeoutIsAResultWithWhatWasPrinted(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	r := h.result(h.submit(opExec, object{"sandbox": sb, "command": "echo before; sleep 100", "timeout_s": 0.05}))
	require.Equal(t, core.NoExitCode, r.ExitCode)
	require.Equal(t, core.ErrorTypeTimeout, r.ErrorType)
	require.Equal(t, "mem command timed out after 0.05s", r.Reason)
	require.Equal(t, "before\n", string(r.out))
}

func TestAStreamedOutputComesAsItIsPrinted(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	id := h.submit(opExec, object{"sandbox": sb, "command": "echo now; cat; echo late >&2", "stdout": follow, "stderr": discard, "stdin": true})
	out, in := h.stream(id, 1), h.stream(id, 0)
	h.edge(out)
	buf := make([]byte, 100)
	n, code := l.StreamRead(out, buf)
	require.Equal(t, OK, code)
	require.Equal(t, "now\n", string(buf[:n]), "before the command has ended")
	n, code = l.StreamWrite(in, []byte("typed"))
	require.Equal(t, OK, code)
	require.Equal(t, 5, n)
	require.Equal(t, OK, l.StreamCloseWrite(in))
	require.Equal(t, "typed", string(h.readAll(out)))
	r := h.result(id)
	require.Zero(t, r.ExitCode)
	require.Nil(t, r.Stdout)
	require.Nil(t, r.Stderr)
	_, code = l.StreamWrite(in, []byte("x"))
	require.Equal(t, ErrClosed, code)
	require.Equal(t, OK, l.StreamClose(in))
	require.Equal(t, OK, l.StreamClose(in))
	require.Zero(t, h.stats().Streams)
}

func TestMuchStreamedBothWays(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	id := h.submit(opExec, object{"sandbox": sb, "command": "cat", "stdout": follow, "stdin": true})
	out, in := h.stream(id, 1), h.stream(id, 0)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	var got []byte
	buf := make([]byte, 64<<10)
	for left := data; len(got) < len(data); {
		if len(left) > 0 {
			n, code := l.StreamWrite(in, left)
			require.Equal(t, OK, code)
			if left = left[n:]; len(left) == 0 {
				l.StreamCloseWrite(in)
			}
		}
		n, code := l.StreamRead(out, buf)
		require.Contains(t, []Code{OK, EOF}, code)
		got = append(got, buf[:n]...)
		if n == 0 && len(got) < len(data) && h.edges[out]+h.edges[in] == 0 {
			h.turn()
		}
		h.edges[out], h.edges[in] = 0, 0
	}
	require.True(t, bytes.Equal(data, got))
	require.Empty(t, h.readAll(out))
	h.result(id)
}

func TestCancellingFreesACommandThatNobodyReads(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	id := h.submit(opExec, object{"sandbox": sb, "command": "yes 100000000", "stdout": follow})
	out := h.stream(id, 1)
	h.edge(out)
	require.Equal(t, OK, h.b.Cancel(id))
	require.EqualValues(t, core.KindCanceled, h.failed(id).Kind)
	require.LessOrEqual(t, len(h.readAll(out)), ringSize, "what was printed can still be read, and ends")
}

func TestClosingAStreamIsAClosedPipe(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	id := h.submit(opExec, object{"sandbox": sb, "command": "yes 100000000; echo after >&2", "stdout": follow})
	out := h.stream(id, 1)
	h.edge(out)
	require.Equal(t, OK, l.StreamClose(out))
	r := h.result(id)
	require.Equal(t, "after\n", string(r.err), "the command goes on behind it")
	_, code := l.StreamRead(out, make([]byte, 1))
	require.Equal(t, ErrBadHandle, code)
}

func TestStoppingTheSandboxEndsItsCommands(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	id := h.submit(opExec, object{"sandbox": sb, "command": "echo begun; sleep 1000", "stdout": follow})
	h.edge(h.stream(id, 1))
	h.run(opStop, object{"sandbox": sb}, nil)
	r := h.result(id)
	require.Equal(t, core.ErrorTypeSandbox, r.ErrorType)
	require.Contains(t, r.Reason, "stopped")
}

func TestStreamMisuse(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	_, sb := h.sandbox("{}")
	id := h.submit(opExec, object{"sandbox": sb, "command": "sleep 1000", "stdout": follow, "stdin": true})
	out, in := h.stream(id, 1), h.stream(id, 0)
	_, code := l.StreamWrite(out, []byte("x"))
	require.Equal(t, ErrInvalid, code)
	_, code = l.StreamRead(in, make([]byte, 1))
	require.Equal(t, ErrInvalid, code)
	_, code = l.StreamRead(out, nil)
	require.Equal(t, ErrInvalid, code)
	require.Equal(t, ErrInvalid, l.StreamCloseWrite(out))
	for _, bad := range []Handle{0, sb, h.handle} {
		_, code = l.StreamRead(bad, make([]byte, 1))
		require.Equal(t, ErrBadHandle, code)
		_, code = l.StreamWrite(bad, make([]byte, 1))
		require.Equal(t, ErrBadHandle, code)
		require.Equal(t, ErrBadHandle, l.StreamCloseWrite(bad))
		require.Equal(t, OK, l.StreamClose(bad))
	}
	h.b.Cancel(id)
	h.failed(id)
}

func TestTimeoutsOfRequests(t *testing.T) {
	for _, c := range []struct {
		seconds float64
		want    time.Duration
	}{{-1, core.Forever}, {1e300, core.Forever}, {1.5, 1500 * time.Millisecond}, {1e-12, 1}} {
		got, err := duration(c.seconds)
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := seconds("ttl_s", -1)
	require.Error(t, err)
	d, err := seconds("ttl_s", 1e300)
	require.NoError(t, err)
	require.Positive(t, d)
}

// However long a backend's texts are, and however JSON blows them up, the event fits into any drain buffer.
func TestTheLargestEventFits(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	o := &operation{bridge: h.b, id: 1, ctx: t.Context()}
	c := core.NewCollector(0)
	for _, s := range []core.Stream{core.Stdout, core.Stderr} {
		require.NoError(t, c.Write(s, make([]byte, inlineOutput)))
	}
	res := core.ExecResult{Reason: strings.Repeat("\x01", 1<<20)}
	rep, err := o.execReply(res, &outputs{collector: c, modes: [2]string{collect, collect}})
	require.NoError(t, err)
	require.LessOrEqual(t, len(rep.payload), maxPayload)
	_, payload := describe(core.Errorf(core.KindCreate, "", "%s", res.Reason))
	require.LessOrEqual(t, len(payload), maxPayload)
}

func TestAnAnswerThatIsTooLargeIsAnError(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	ctx, cancel := context.WithCancelCause(t.Context())
	o := &operation{bridge: h.b, id: 7, ctx: ctx, cancel: cancel}
	undone := false
	h.b.ops[7] = o
	o.run(func(*operation, []byte) (reply, error) {
		return reply{payload: make([]byte, maxPayload+1), undo: func() { undone = true }}, nil
	}, nil)
	require.Contains(t, h.failed(7).Message, "too large")
	require.True(t, undone)
}
