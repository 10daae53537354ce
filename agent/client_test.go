package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestMain(m *testing.M) {
	state, err := os.MkdirTemp("", "ngs-agent-test-")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_STATE_HOME", state)
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(state)
		os.Exit(code)
	}))
}

// transport is a way to reach an agent; every behaviour must be the same over all.
type transport struct {
	name    string
	passFDs bool
	mux     bool
}

var transports = []transport{{"descriptors", true, false}, {"frames", false, false}, {"multiplexed", false, true}}

// rig is an agent of its own, below the test process.
type rig struct {
	*Client
	t       testing.TB
	dir     *HostDir
	cmd     *exec.Cmd
	ended   chan struct{}
	options Options
}

func startAgent(t testing.TB, tr transport, change func(*ServeConfig, *Options)) *rig {
	t.Helper()
	bin, err := Binary(runtime.GOARCH)
	require.NoError(t, err)
	dir, err := NewHostDir(strings.NewReplacer("/", "-", " ", "-").Replace(t.Name()) + marker())
	require.NoError(t, err)
	work := t.TempDir()
	require.NoError(t, os.Chmod(work, 0o755))
	cfg := ServeConfig{
		Socket: filepath.Join(dir.RunDir(), dir.SocketName()), TokenFile: filepath.Join(dir.RunDir(), dir.TokenName()),
		Workdir: work, Subreaper: true,
	}
	o := Options{Token: dir.Token, Provider: "test", SandboxID: "box", Seal: dir.Seal, PassFDs: tr.passFDs, Dial: dir.Dial}
	if change != nil {
		change(&cfg, &o)
	}
	r := &rig{t: t, dir: dir, ended: make(chan struct{})}
	r.cmd = exec.Command(bin, cfg.Args()...)
	r.cmd.Stderr = os.Stderr
	r.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}
	require.NoError(t, r.cmd.Start())
	go func() { defer close(r.ended); _ = r.cmd.Wait() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if tr.mux {
		require.Eventually(t, func() bool { _, err := os.Stat(cfg.Socket); return err == nil }, 5*time.Second, time.Millisecond)
		relay := exec.Command(bin, ConnectArgs(cfg.Socket)...)
		stdin, err := relay.StdinPipe()
		require.NoError(t, err)
		stdout, err := relay.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, relay.Start())
		m, err := NewMux(both{stdout, stdin})
		require.NoError(t, err)
		o.Dial = m.Dial
		t.Cleanup(func() { _ = m.Close(); _ = relay.Wait() })
	}
	r.options = o
	r.Client, err = Connect(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		assert.NoError(t, r.Shutdown(ctx))
		r.Close()
		select {
		case <-r.ended:
		case <-ctx.Done():
			t.Error("the agent outlives its shutdown")
			_ = r.cmd.Process.Kill()
		}
		assert.NoError(t, dir.Remove())
	})
	return r
}

type both struct {
	io.ReadCloser
	w io.WriteCloser
}

func (b both) Write(p []byte) (int, error) { return b.w.Write(p) }
func (b both) Close() error                { _ = b.w.Close(); return b.ReadCloser.Close() }

type output struct{ out, err string }

func (r *rig) exec(req core.ExecRequest) (core.ExecResult, output) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := core.NewCollector(0)
	res, err := r.Exec(ctx, req, c)
	require.NoError(r.t, err)
	return res, output{c.Output(core.Stdout).String(), c.Output(core.Stderr).String()}
}

func (r *rig) sh(command string) (core.ExecResult, output) {
	r.t.Helper()
	return r.exec(core.ExecRequest{Command: command, Timeout: 20 * time.Second})
}

// each runs a test over every transport.
func each(t *testing.T, f func(t *testing.T, r *rig)) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) { f(t, startAgent(t, tr, nil)) })
	}
}

func TestExecGivesOutputAndCode(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		res, out := r.sh(`echo out; echo err >&2; exit 7`)
		assert.Equal(t, core.ExecResult{ExitCode: 7}, res)
		assert.Equal(t, output{"out\n", "err\n"}, out)
		res, _ = r.sh(`kill -SEGV $$`)
		assert.Equal(t, core.ExecResult{ExitCode: 139}, res)
	})
}

func TestExecKeepsEveryByte(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		for _, n := range []int{0, 1, 4095, 4096, 65535, 65536, 65537, 1 << 20, 5<<20 + 3} {
			res, out := r.sh(fmt.Sprintf(`head -c %d /dev/zero | tr '\0' x; printf END`, n))
			assert.Equal(t, 0, res.ExitCode)
			assert.Equal(t, n+3, len(out.out))
			assert.True(t, strings.HasSuffix(out.out, "END"))
		}
	})
}

func TestArgvRunsWithoutShell(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		res, out := r.exec(core.ExecRequest{Argv: []string{"printf", "%s|", "a b", "$HOME", ""}})
		assert.Equal(t, 0, res.ExitCode)
		assert.Equal(t, "a b|$HOME||", out.out)
		res, out = r.exec(core.ExecRequest{Argv: []string{"no-such-program"}})
		assert.Equal(t, core.ExecResult{ExitCode: 127}, res)
		assert.Contains(t, out.err, "no-such-program")
		res, _ = r.exec(core.ExecRequest{Argv: []string{"/etc/passwd"}})
		assert.Equal(t, core.ExecResult{ExitCode: 126}, res)
	})
}

func TestStdinReachesTheCommand(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		res, out := r.exec(core.ExecRequest{Command: "cat; echo done"})
		assert.Equal(t, 0, res.ExitCode)
		assert.Equal(t, "done\n", out.out)
		big := strings.Repeat("0123456789abcdef", 1<<16)
		_, out = r.exec(core.ExecRequest{Command: "md5sum; cat", Stdin: strings.NewReader(big)})
		assert.True(t, strings.HasSuffix(out.out, "-\n"))
		_, out = r.exec(core.ExecRequest{Command: "cat", Stdin: strings.NewReader(big)})
		assert.Equal(t, big, out.out)
		// A command that does not read must end all the same.
		res, out = r.exec(core.ExecRequest{Command: "echo ok", Stdin: strings.NewReader(big)})
		assert.Equal(t, 0, res.ExitCode)
		assert.Equal(t, "ok\n", out.out)
	})
}

func TestStdinSourceThatNeverEndsIsClosed(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		pr, pw := io.Pipe()
		res, _ := r.exec(core.ExecRequest{Command: "true", Stdin: pr})
		assert.Equal(t, 0, res.ExitCode)
		_, err := pw.Write([]byte("x"))
		assert.ErrorIs(t, err, io.ErrClosedPipe)
	})
}

func TestLongAndOddCommandsArriveWhole(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		_, out := r.sh(": '" + strings.Repeat("x", 200_000) + "'; echo ok; exit 3 #" + strings.Repeat("y", 1000))
		assert.Equal(t, "ok\n", out.out)
		res, _ := r.sh(": '" + strings.Repeat("x", 2_000_000) + "'; exit 3")
		assert.Equal(t, 3, res.ExitCode)
		res, _ = r.sh("--help")
		assert.Equal(t, core.ExecResult{ExitCode: 127}, res)
		_, out = r.sh("cat <<'E'\nit's \"$HOME\" `x` \\n ☕\nE\n")
		assert.Equal(t, "it's \"$HOME\" `x` \\n ☕\n", out.out)
	})
}

func TestErrorsNameTheirCause(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		res, _ := r.exec(core.ExecRequest{Command: "pwd", Cwd: "/no/such/dir"})
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
		assert.Contains(t, res.Reason, "/no/such/dir")
		res, _ = r.exec(core.ExecRequest{Command: "pwd", User: "nobody-of-that-name"})
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
		assert.Contains(t, res.Reason, "nobody-of-that-name")
	})
}

func TestUserNeedsNoPasswdEntry(t *testing.T) {
	if os.Getuid() != 0 {
		t.Log("an ordinary user can't change user; the single-user error is tested elsewhere")
		return
	}
	each(t, func(t *testing.T, r *rig) {
		_, out := r.exec(core.ExecRequest{Command: "id -u; id -g; echo $HOME", User: "12345:6789", Cwd: "/"})
		assert.Equal(t, "12345\n6789\n/\n", out.out)
		_, out = r.exec(core.ExecRequest{Command: "id -u; echo ${#X}; : '" + strings.Repeat("x", 200_000) + "'; echo ok", User: "12345", Cwd: "/", Env: map[string]string{"X": "a\nb"}})
		assert.Equal(t, "12345\n3\nok\n", out.out)
	})
}

func TestBackgroundChildThatHoldsStdoutDoesNotHoldExec(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		begun := time.Now()
		res, out := r.sh("sleep 97531 & echo started")
		assert.Equal(t, 0, res.ExitCode)
		assert.Equal(t, "started\n", out.out)
		assert.Less(t, time.Since(begun), 5*time.Second)
	})
}

// shapes of process trees that a timeout or a cancellation must end.
var shapes = map[string]string{
	"alone":          "exec sleep %s",
	"child":          "sleep %s & sleep %[1]s; wait",
	"grandchild":     "sh -c 'sh -c \"sleep %s; true\"; true'; true",
	"own session":    "setsid sleep %s & sleep %[1]s; wait",
	"double fork":    "(setsid sh -c 'sleep %s; true' &) ; (setsid setsid sleep %[1]s &); sleep %[1]s",
	"ignores TERM":   "trap '' TERM INT HUP; sleep %s & sleep %[1]s; sleep %[1]s",
	"stopped":        "sleep %s & kill -STOP $!; sleep %[1]s",
	"writes forever": "yes %s & sleep %[1]s",
	"clean env":      "setsid env -i sleep %s & sleep %[1]s",
}

func TestTimeoutEndsTheWholeTree(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		for name, shape := range shapes {
			mark := marker()
			res, _ := r.exec(core.ExecRequest{Command: "echo before; " + fmt.Sprintf(shape, mark), Timeout: 300 * time.Millisecond})
			assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType, name)
			assert.Equal(t, core.NoExitCode, res.ExitCode, name)
			assert.Empty(t, alive(mark), name)
		}
	})
}

func TestTimeoutKeepsWhatWasPrinted(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		res, out := r.exec(core.ExecRequest{Command: "echo before; sleep 97530", Timeout: 300 * time.Millisecond})
		assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
		assert.Equal(t, "test command timed out after 0.3s", res.Reason)
		assert.Equal(t, "before\n", out.out)
	})
}

func TestCancelEndsTheWholeTree(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		for name, shape := range shapes {
			mark := marker()
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				_, err := r.Exec(ctx, core.ExecRequest{Command: fmt.Sprintf(shape, mark)}, core.Discard)
				done <- err
			}()
			require.Eventually(t, func() bool { return len(alive(mark)) > 0 }, 5*time.Second, 5*time.Millisecond, name)
			cancel()
			err := <-done
			assert.Equal(t, core.KindCanceled, core.KindOf(err), name)
			assert.ErrorIs(t, err, context.Canceled)
			assert.Empty(t, alive(mark), name)
		}
	})
}

func TestKeepBackgroundSparesServices(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		mark := marker()
		res, _ := r.exec(core.ExecRequest{Command: "setsid sleep " + mark + " >/dev/null 2>&1 & exec sleep 97529", Timeout: 300 * time.Millisecond, KeepBackground: true})
		assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
		assert.Len(t, alive(mark), 1)
	})
}

func TestClientDeathKillsItsCommands(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		other, err := Connect(context.Background(), r.options)
		require.NoError(t, err)
		mark := marker()
		done := make(chan core.ExecResult, 1)
		go func() {
			res, _ := other.Exec(context.Background(), core.ExecRequest{Command: "sleep " + mark}, core.Discard)
			done <- res
		}()
		require.Eventually(t, func() bool { return len(alive(mark)) > 0 }, 5*time.Second, 5*time.Millisecond)
		other.Close()
		assert.Equal(t, core.ErrorTypeSandbox, (<-done).ErrorType)
		assert.Eventually(t, func() bool { return len(alive(mark)) == 0 }, 5*time.Second, 5*time.Millisecond)
		_, out := r.sh("echo alive")
		assert.Equal(t, "alive\n", out.out)
	})
}

func TestManyCommandsAtOnceEachGetTheirOwnAnswer(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				c := core.NewCollector(0)
				res, err := r.Exec(context.Background(), core.ExecRequest{Command: fmt.Sprintf("echo %d; exit %d", i, i%100)}, c)
				assert.NoError(t, err)
				assert.Equal(t, i%100, res.ExitCode)
				assert.Equal(t, fmt.Sprintf("%d\n", i), c.Output(core.Stdout).String())
			}()
		}
		wg.Wait()
	})
}

func TestSlowSinkHoldsTheCommandBack(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		release := make(chan struct{})
		var got int
		sink := sinkFunc(func(s core.Stream, p []byte) error {
			<-release
			got += len(p)
			return nil
		})
		file := filepath.Join(t.TempDir(), "done")
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, err := r.Exec(context.Background(), core.ExecRequest{Command: "head -c 8388608 /dev/zero; touch " + file}, sink)
			assert.NoError(t, err)
		}()
		select {
		case <-done:
			t.Error("the command ended although nobody took its output")
		case <-time.After(300 * time.Millisecond):
		}
		assert.NoFileExists(t, file)
		close(release)
		<-done
		assert.Equal(t, 8<<20, got)
	})
}

type sinkFunc func(core.Stream, []byte) error

func (f sinkFunc) Write(s core.Stream, p []byte) error { return f(s, p) }

func TestFilesMakeTheRoundTrip(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		dir := t.TempDir()
		for _, n := range []int{0, 1, 65536, 3<<20 + 7, 16 << 20} {
			src, back := filepath.Join(dir, "src"), filepath.Join(dir, "new", "back")
			want := bytes.Repeat([]byte("ab\x00\xff"), n/4+1)[:n]
			require.NoError(t, os.WriteFile(src, want, 0o640))
			require.NoError(t, os.Chmod(src, 0o751))
			require.NoError(t, r.Upload(context.Background(), src, "a dir/up '\n☕"))
			require.NoError(t, r.Download(context.Background(), "a dir/up '\n☕", back))
			got, err := os.ReadFile(back)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(want, got))
			st, err := os.Stat(back)
			require.NoError(t, err)
			assert.Equal(t, os.FileMode(0o751), st.Mode().Perm())
		}
	})
}

func TestManyFilesAreWrittenInOneOperation(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		var files []core.File
		var want strings.Builder
		for i := range 200 {
			text := strings.Repeat(fmt.Sprintf("%d☕", i), i)
			files = append(files, core.File{Path: fmt.Sprintf("d%d/f%d", i%7, i), Content: text})
		}
		files = append(files, core.File{Path: "big", Content: strings.Repeat("x", 1<<20)}, core.File{Path: "d0/f0", Content: "again"})
		require.NoError(t, r.WriteFiles(context.Background(), files))
		files[0].Content = "again"
		for _, f := range files[:200] {
			want.WriteString(f.Content)
		}
		_, out := r.sh("i=0; while [ $i -lt 200 ]; do cat d$((i % 7))/f$i; i=$((i+1)); done")
		assert.Equal(t, want.String(), out.out)
		_, out = r.sh("wc -c < big; stat -c %a d0/f0")
		assert.Equal(t, "1048576\n644\n", out.out)
		err := r.WriteFiles(context.Background(), []core.File{{Path: "ok", Content: "1"}, {Path: "/proc/none/x", Content: "2"}})
		assert.ErrorContains(t, err, "/proc/none/x")
	})
}

func TestFilesThatAreWrittenFollowLinksAndKeepTheRestOfTheRules(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		r.sh("ln -s later dangling; echo old > there; chmod 600 there; ln -s there link")
		require.NoError(t, r.WriteFiles(context.Background(), []core.File{
			{Path: "dangling", Content: "1"}, {Path: "link", Content: "2"},
		}))
		_, out := r.sh("cat later there; readlink dangling link; stat -c %a later there; ls -A | grep -c ngs-upload")
		assert.Equal(t, "12later\nthere\n644\n644\n0\n", out.out)
		err := r.WriteFiles(context.Background(), []core.File{{Path: "/", Content: "x"}})
		assert.ErrorContains(t, err, "directory")
		err = r.WriteFiles(context.Background(), []core.File{{Path: "file", Content: "x"}, {Path: "file/below", Content: "y"}})
		assert.ErrorContains(t, err, "file/below")
	})
}

func TestFailedTransfersLeaveNothing(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		dir := t.TempDir()
		err := r.Download(context.Background(), "nope.txt", filepath.Join(dir, "x"))
		assert.Equal(t, core.KindNotFound, core.KindOf(err))
		assert.ErrorContains(t, err, "nope.txt")
		err = r.Download(context.Background(), "/etc", filepath.Join(dir, "x"))
		assert.ErrorContains(t, err, "directory")
		err = r.Upload(context.Background(), dir, "x")
		assert.ErrorContains(t, err, "directory")
		err = r.Upload(context.Background(), filepath.Join(dir, "none"), "x")
		assert.Equal(t, core.KindNotFound, core.KindOf(err))
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, left)
		_, out := r.sh("ls -A")
		assert.Empty(t, out.out)
	})
}

func TestNoTransferReplacesASpecialFile(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		src := filepath.Join(t.TempDir(), "src")
		require.NoError(t, os.WriteFile(src, []byte("x"), 0o644))
		r.sh("mkfifo pipe; ln -s pipe link; echo x > f")
		for _, target := range []string{"pipe", "link"} {
			assert.ErrorContains(t, r.Upload(context.Background(), src, target), "not a regular file")
			assert.ErrorContains(t, r.WriteFiles(context.Background(), []core.File{{Path: target, Content: "x"}}), "not a regular file")
		}
		_, out := r.sh("test -p pipe && ls -A")
		assert.Equal(t, "f\nlink\npipe\n", out.out)

		pipe := filepath.Join(t.TempDir(), "pipe")
		require.NoError(t, unix.Mkfifo(pipe, 0o600))
		assert.ErrorContains(t, r.Download(context.Background(), "f", pipe), "not a regular file")
		st, err := os.Stat(pipe)
		require.NoError(t, err)
		assert.Equal(t, os.ModeNamedPipe, st.Mode().Type())
	})
}

func TestFilesThatDoNotTellTheirSizeArrive(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		back := filepath.Join(t.TempDir(), "back")
		assert.ErrorContains(t, r.Upload(context.Background(), "/proc/version", "x"), "does not tell its size")
		require.NoError(t, r.Download(context.Background(), "/proc/version", back))
		want, err := os.ReadFile("/proc/version")
		require.NoError(t, err)
		got, err := os.ReadFile(back)
		require.NoError(t, err)
		assert.Equal(t, string(want), string(got))
	})
}

func TestFreezeStopsTheClock(t *testing.T) {
	r := startAgent(t, transports[0], nil)
	_, _ = r.sh("(while :; do echo x >> tick; sleep 0.02; done) >/dev/null 2>&1 </dev/null &")
	ticks := func() int {
		b, _ := os.ReadFile(filepath.Join(r.Info().Defaults.Workdir, "tick"))
		return len(b)
	}
	require.Eventually(t, func() bool { return ticks() > 4 }, 5*time.Second, time.Millisecond)
	require.NoError(t, r.Freeze(context.Background()))
	n := ticks()
	time.Sleep(200 * time.Millisecond)
	assert.Equal(t, n, ticks())
	require.NoError(t, r.Thaw(context.Background()))
	assert.Eventually(t, func() bool { return ticks() > n }, 5*time.Second, time.Millisecond)
}

func TestEndsTellTheirReason(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*ServeConfig, *Options)
		want   string
	}{
		"ttl":        {func(s *ServeConfig, _ *Options) { s.TTL = 700 * time.Millisecond }, "ttl of 0.7s"},
		"entrypoint": {func(s *ServeConfig, _ *Options) { s.Entrypoint = []string{"sh", "-c", "sleep 0.7; exit 3"} }, "code 3"},
	} {
		t.Run(name, func(t *testing.T) {
			r := startAgent(t, transports[0], c.change)
			mark := marker()
			res, _ := r.exec(core.ExecRequest{Command: "setsid sleep " + mark + " & sleep " + mark})
			assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
			assert.Contains(t, res.Reason, c.want)
			<-r.ended
			assert.Empty(t, alive(mark))
			if name == "entrypoint" {
				assert.Equal(t, 3, r.cmd.ProcessState.ExitCode())
			}
		})
	}
}

func TestOrphanEndsAndHandoverWaits(t *testing.T) {
	r := startAgent(t, transports[0], func(s *ServeConfig, _ *Options) { s.Orphan = 200 * time.Millisecond })
	r.Close()
	select {
	case <-r.ended:
	case <-time.After(5 * time.Second):
		t.Error("the agent outlives its last client")
	}
	kept := startAgent(t, transports[0], func(s *ServeConfig, _ *Options) {
		s.Orphan, s.Handover = 200*time.Millisecond, time.Hour
	})
	require.NoError(t, kept.Handover(context.Background()))
	kept.Close()
	select {
	case <-kept.ended:
		t.Error("the agent ended although it was handed over")
	case <-time.After(500 * time.Millisecond):
	}
	again, err := Connect(context.Background(), kept.options)
	require.NoError(t, err)
	kept.Client = again
}

func TestWrongTokenIsRefusedOnBothSides(t *testing.T) {
	r := startAgent(t, transports[0], nil)
	o := r.options
	o.Token = make([]byte, TokenLen)
	_, err := Connect(context.Background(), o)
	assert.Equal(t, core.KindAuth, core.KindOf(err))
}

func TestSocketReplacedByLinkIsNotFollowed(t *testing.T) {
	d, err := NewHostDir("replaced")
	require.NoError(t, err)
	defer d.Remove()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "other"))
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Symlink(l.Addr().String(), filepath.Join(d.RunDir(), d.SocketName())))
	_, err = d.Dial(context.Background())
	assert.ErrorContains(t, err, "not a socket")
}

func TestLateRequestIsNotStarted(t *testing.T) {
	r := startAgent(t, transports[0], nil)
	r.mu.Lock()
	r.skew = -time.Hour // as if the request had waited that long in a paused sandbox
	r.mu.Unlock()
	file := filepath.Join(t.TempDir(), "ran")
	res, _ := r.exec(core.ExecRequest{Command: "touch " + file, Timeout: time.Second})
	assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
	assert.NoFileExists(t, file)
}

func TestDescriptorsComeBack(t *testing.T) {
	each(t, func(t *testing.T, r *rig) {
		warm := func() {
			var wg sync.WaitGroup
			for range 50 {
				wg.Add(1)
				go func() {
					defer wg.Done()
					_, _ = r.Exec(context.Background(), core.ExecRequest{Command: "true"}, core.Discard)
				}()
			}
			wg.Wait()
			r.pool.shrink()
		}
		warm()
		agentFDs := func() int {
			d, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.cmd.Process.Pid))
			if errors.Is(err, os.ErrPermission) {
				return 0
			}
			return len(d)
		}
		here, there := openFDs(), agentFDs()
		warm()
		assert.Eventually(t, func() bool { return openFDs() <= here }, 5*time.Second, 5*time.Millisecond)
		assert.Eventually(t, func() bool { return agentFDs() <= there }, 5*time.Second, 5*time.Millisecond)
	})
}
