package mem

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, config string, spec core.Spec) core.Instance {
	t.Helper()
	p, err := NewFactory()([]byte(config))
	require.NoError(t, err)
	in, err := p.Create(t.Context(), spec)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, in.Destroy(context.Background())) })
	return in
}

func run(t *testing.T, in core.Instance, req core.ExecRequest) (res core.ExecResult, stdout, stderr string) {
	t.Helper()
	c := core.NewCollector(0)
	res, err := in.Exec(t.Context(), req, c)
	require.NoError(t, err)
	return res, c.Output(core.Stdout).String(), c.Output(core.Stderr).String()
}

func TestCommands(t *testing.T) {
	in := start(t, "{}", core.Spec{Workdir: "/w", Env: map[string]string{"A": "1"}, Files: []core.File{{Path: "f", Content: "text"}}})
	for _, c := range []struct {
		line, out, err string
		code           int
	}{
		{"echo a  b 'c  d'\"e\"", "a b c  de\n", "", 0},
		{"echo x >&2", "", "x\n", 0},
		{"false; echo after", "after\n", "", 0},
		{"false && echo no", "", "", 1},
		{"true && echo yes && exit 300; echo never", "yes\n", "", 44},
		{"cat /w/f", "text", "", 0},
		{"cat nope", "", "cat: nope: No such file or directory\n", 1},
		{"env A B", "1\n", "", 0},
		{"env B", "", "", 1},
		{"env", "A=1\nC=2\n", "", 0},
		{"yes 5 ab", "ab\nab", "", 0},
		{"yes", "", "yes: a number is missing\n", 2},
		{"nope 1", "", "nope: not found\n", 127},
		{"echo 'open", "", "mem: a quote is not closed\n", 2},
		{"; echo", "", "mem: a command is missing\n", 2},
		{"", "", "mem: a command is missing\n", 2},
		{"pwd; whoami; sleep 0; spin 0; wc", "/\nroot\n0\n", "", 0},
	} {
		t.Run(c.line, func(t *testing.T) {
			res, out, errs := run(t, in, core.ExecRequest{Command: c.line, Env: map[string]string{"C": "2"}})
			require.Equal(t, core.ExecResult{ExitCode: c.code}, res)
			require.Equal(t, c.out, out)
			require.Equal(t, c.err, errs)
		})
	}
	_, out, _ := run(t, in, core.ExecRequest{Argv: []string{"echo", "a; b"}})
	require.Equal(t, "a; b\n", out)
	_, out, _ = run(t, in, core.ExecRequest{Command: "cat; cat", Stdin: strings.NewReader("once")})
	require.Equal(t, "once", out)
}

func TestEndsOfCommands(t *testing.T) {
	in := start(t, "{}", core.Spec{})
	for _, line := range []string{"sleep 1000", "spin 1000", "yes 1e18"} {
		res, err := in.Exec(t.Context(), core.ExecRequest{Command: "echo x; " + line, Timeout: 20 * time.Millisecond}, core.Discard)
		require.NoError(t, err)
		require.Equal(t, core.TimedOut("mem", 20*time.Millisecond), res, line)

		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err = in.Exec(ctx, core.ExecRequest{Command: line, Timeout: core.Forever}, core.Discard)
		require.ErrorIs(t, err, context.DeadlineExceeded, line)
		cancel()
	}
	over := make(chan core.ExecResult, 1)
	go func() {
		res, _ := in.Exec(t.Context(), core.ExecRequest{Command: "sleep 1000"}, core.Discard)
		over <- res
	}()
	require.NoError(t, in.Destroy(t.Context()))
	require.Equal(t, core.ErrorTypeSandbox, (<-over).ErrorType)
	st, err := in.Status(t.Context())
	require.NoError(t, err)
	require.Equal(t, core.StatusStopped, st)
}

type closedPipe struct{}

func (closedPipe) Write(s core.Stream, _ []byte) error {
	if s == core.Stdout {
		return errors.New("closed")
	}
	return nil
}

func TestAClosedPipeEndsACommandAndNotItsLine(t *testing.T) {
	in := start(t, "{}", core.Spec{})
	res, err := in.Exec(t.Context(), core.ExecRequest{Command: "yes 1e18; exit 9"}, closedPipe{})
	require.NoError(t, err)
	require.Equal(t, 9, res.ExitCode)
	res, err = in.Exec(t.Context(), core.ExecRequest{Command: "echo x"}, closedPipe{})
	require.NoError(t, err)
	require.Equal(t, 141, res.ExitCode)
}

func TestConfigurationAndCreate(t *testing.T) {
	for config, kind := range map[string]core.Kind{
		`{"nope": 1}`: core.KindUnknownKey, `{"default_timeout_s": 0}`: core.KindInvalid, `{"create_delay_s": -1}`: core.KindInvalid, `[]`: core.KindInvalid,
	} {
		_, err := NewFactory()([]byte(config))
		require.Equal(t, kind, core.KindOf(err), config)
	}
	p, err := NewFactory()([]byte(`{"fail_create": "verification"}`))
	require.NoError(t, err)
	_, err = p.Create(t.Context(), core.Spec{})
	require.Equal(t, core.KindVerification, core.KindOf(err))
	p, err = NewFactory()([]byte(`{"create_delay_s": 1000}`))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = p.Create(ctx, core.Spec{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, p.Close(t.Context()))
	_, err = p.Create(t.Context(), core.Spec{})
	require.Equal(t, core.KindClosed, core.KindOf(err))
}

func TestFilesKeepTheirMode(t *testing.T) {
	in := start(t, "{}", core.Spec{})
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "new", "to")
	require.NoError(t, os.WriteFile(from, []byte("x"), 0o750))
	require.NoError(t, in.Upload(t.Context(), from, "up"))
	require.NoError(t, in.Download(t.Context(), "/up", to))
	st, err := os.Stat(to)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o750), st.Mode().Perm())
	require.Equal(t, core.KindNotFound, core.KindOf(in.Upload(t.Context(), filepath.Join(dir, "gone"), "x")))
	require.Equal(t, core.KindNotFound, core.KindOf(in.Download(t.Context(), "gone", to)))
}
