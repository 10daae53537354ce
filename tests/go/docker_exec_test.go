package tests

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// lines is a Sink that tells of each complete line of standard output.
type lines struct {
	mu   sync.Mutex
	rest string
	seen chan string
}

func newLines() *lines { return &lines{seen: make(chan string, 1000)} }

// Write implements core.Sink.
func (l *lines) Write(s core.Stream, p []byte) error {
	if s != core.Stdout {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest += string(p)
	for {
		line, rest, ok := strings.Cut(l.rest, "\n")
		if !ok {
			return nil
		}
		l.rest = rest
		l.seen <- line
	}
}

// next waits for a line.
func (l *lines) next(t testing.TB) string {
	t.Helper()
	select {
	case line := <-l.seen:
		return line
	case <-time.After(30 * time.Second):
		t.Fatal("no line came")
		return ""
	}
}

// started runs a command beside and returns when it has printed a line.
func started(t testing.TB, sb *core.Sandbox, req core.ExecRequest) <-chan core.ExecResult {
	t.Helper()
	l, over := newLines(), make(chan core.ExecResult, 1)
	go func() {
		res, err := sb.Exec(context.Background(), req, l)
		if err != nil {
			t.Errorf("exec: %v", err)
		}
		over <- res
	}()
	l.next(t)
	return over
}

func soon(t testing.TB, over <-chan core.ExecResult, within time.Duration) core.ExecResult {
	t.Helper()
	select {
	case res := <-over:
		return res
	case <-time.After(within):
		t.Fatalf("no result within %s", within)
		return core.ExecResult{}
	}
}

// A sandbox that goes away under a command is a failure of the runtime, told soon, never the command's result.
func TestDockerSandboxEndsUnderACommand(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	endings := map[string]struct {
		spec core.Spec
		end  func(t *testing.T, id string)
		says string
	}{
		"removed": {end: func(t *testing.T, id string) {
			require.NoError(t, engine(t).ContainerRemove(t.Context(), id, container.RemoveOptions{Force: true}))
		}},
		"killed": {end: func(t *testing.T, id string) {
			require.NoError(t, engine(t).ContainerKill(t.Context(), id, "KILL"))
		}},
		"ttl": {spec: core.Spec{TTL: 2 * time.Second}, end: func(*testing.T, string) {}, says: "ttl"},
	}
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		for name, e := range endings {
			t.Run(name, func(t *testing.T) {
				spec := e.spec
				spec.Image = tag
				sb := begin(t, newDocker(t, cfg), spec)
				over := started(t, sb, core.ExecRequest{Command: "echo up; sleep 100", Timeout: 60 * time.Second})
				e.end(t, sb.ID())
				res := soon(t, over, 10*time.Second)
				assert.Equal(t, core.NoExitCode, res.ExitCode)
				assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType, "%+v", res)
				assert.Contains(t, res.Reason, e.says)
				assert.Regexp(t, "the container|the sandbox", res.Reason, "the cause, not how it was noticed")
				assert.Eventually(t, func() bool {
					st, err := sb.Status(t.Context())
					return err == nil && st == core.StatusStopped
				}, 10*time.Second, 20*time.Millisecond)
				_, after := try(t, sb, core.ExecRequest{Command: "echo hi", Timeout: 5 * time.Second})
				assert.Equal(t, core.ErrorTypeSandbox, after.ErrorType)
				require.Error(t, sb.Download(t.Context(), "/etc/passwd", filepath.Join(t.TempDir(), "x")))
				_ = engine(t).Close()
			})
		}
	})
}

func TestDockerEntrypointsEndIsTheSandboxes(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		sb := begin(t, newDocker(t, cfg), core.Spec{Image: tag, Entrypoint: []string{"sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 3"}})
		over := started(t, sb, core.ExecRequest{Command: "echo up; touch /tmp/end; sleep 100", Timeout: 60 * time.Second})
		res := soon(t, over, 15*time.Second)
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType, "%+v", res)
		if way != "engine" {
			assert.Contains(t, res.Reason, "code 3")
		}
	})
}

func TestDockerPausedSandbox(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		sb := begin(t, newDocker(t, cfg), core.Spec{Image: tag})
		require.NoError(t, sb.Pause(t.Context()))
		require.NoError(t, sb.Pause(t.Context()), "it is as wanted already")
		st, err := sb.Status(t.Context())
		require.NoError(t, err)
		assert.Equal(t, core.StatusPaused, st)
		begun := time.Now()
		_, res := try(t, sb, core.ExecRequest{Command: "echo hi", Timeout: 20 * time.Second})
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType, "%+v", res)
		assert.Contains(t, res.Reason, "is paused")
		assert.Less(t, time.Since(begun), 4*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		assert.ErrorContains(t, sb.Upload(ctx, "/etc/passwd", "/tmp/f"), "is paused")
		assert.ErrorContains(t, sb.Download(ctx, "/etc/passwd", filepath.Join(t.TempDir(), "f")), "is paused")
		require.NoError(t, sb.Resume(t.Context()))
		require.NoError(t, sb.Resume(t.Context()))
		assert.Equal(t, "hi\n", shell(t, sb, core.ExecRequest{Command: "echo hi"}))
	})
}

// A transfer put a file in the place of a device, and brought files of /proc empty.
func TestDockerFilesThatAreNoneOnDisk(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, _ string, cfg settings) {
		sb := begin(t, newDocker(t, cfg), core.Spec{Image: tag})
		src := filepath.Join(t.TempDir(), "src")
		require.NoError(t, os.WriteFile(src, []byte("x"), 0o644))
		assert.ErrorContains(t, sb.Upload(t.Context(), src, "/dev/null"), "regular file")
		assert.Equal(t, "device\n", shell(t, sb, core.ExecRequest{Command: "test -c /dev/null && echo device"}))
		pipe := filepath.Join(t.TempDir(), "pipe")
		require.NoError(t, syscall.Mkfifo(pipe, 0o600))
		assert.ErrorContains(t, sb.Download(t.Context(), "/etc/passwd", pipe), "regular file")
		st, err := os.Stat(pipe)
		require.NoError(t, err)
		assert.Equal(t, os.ModeNamedPipe, st.Mode().Type())
		assert.ErrorContains(t, sb.Upload(t.Context(), "/proc/version", "/tmp/version"), "does not tell its size")
		require.NoError(t, sb.Download(t.Context(), "/proc/version", src))
		got, err := os.ReadFile(src)
		require.NoError(t, err)
		assert.Equal(t, shell(t, sb, core.ExecRequest{Command: "cat /proc/version"}), string(got))
	})
}

func TestDockerOutOfMemoryIsToldApart(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		sb := begin(t, newDocker(t, cfg), core.Spec{Image: tag, Resources: core.Resources{MemoryMiB: 48}})
		_, res := try(t, sb, core.ExecRequest{Command: "exit 137"})
		assert.Equal(t, core.ExecResult{ExitCode: 137}, res, "a command's own code")
		_, res = try(t, sb, core.ExecRequest{Command: "kill -9 $$"})
		assert.Equal(t, core.ExecResult{ExitCode: 137}, res, "killed by somebody")
		_, res = try(t, sb, core.ExecRequest{Command: "tail /dev/zero"})
		assert.Equal(t, 137, res.ExitCode, "%+v", res)
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
		assert.Contains(t, res.Reason, "out of memory")
		_, res = try(t, sb, core.ExecRequest{Command: "kill -9 $$"})
		assert.Equal(t, core.ExecResult{ExitCode: 137}, res, "told once")
	})
}

func TestDockerTextOnStderrDecidesNothing(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		sb := begin(t, newDocker(t, cfg), core.Spec{Image: tag})
		for _, text := range []string{"Error response from daemon: no", "OCI runtime exec failed: exec failed", "No such container: web", "nginx is not running"} {
			out, res := try(t, sb, core.ExecRequest{Command: "printf '" + text + "\\r\\n'; printf '" + text + "\\r\\n' >&2; exit 3"})
			assert.Equal(t, core.ExecResult{ExitCode: 3}, res)
			assert.Equal(t, text+"\r\n"+text+"\r\n", out)
		}
		for _, code := range []int{124, 125, 126, 127, 130, 143, 255} {
			_, res := try(t, sb, core.ExecRequest{Command: fmt.Sprintf("exit %d", code)})
			assert.Equal(t, core.ExecResult{ExitCode: code}, res)
		}
		out, res := try(t, sb, core.ExecRequest{Command: "pwd", Cwd: "/no/such/dir"})
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
		assert.Contains(t, res.Reason, "/no/such/dir")
		assert.Empty(t, out)
		_, res = try(t, sb, core.ExecRequest{Command: "pwd", User: "nosuchuser"})
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
		assert.Contains(t, res.Reason, "nosuchuser")
		_, res = try(t, sb, core.ExecRequest{Argv: []string{"no-such-program"}})
		assert.Equal(t, core.ExecResult{ExitCode: 127}, res)
		assert.Equal(t, "ok\n", shell(t, sb, core.ExecRequest{Command: ": '" + strings.Repeat("x", 300_000) + "'; echo ok"}))
	})
}

func TestDockerEndpoints(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	p := newDocker(t, nil)
	var urls []string
	for n := range 2 {
		sb := begin(t, p, core.Spec{Image: tag, Ports: []int{8080}})
		shell(t, sb, core.ExecRequest{Command: fmt.Sprintf("mkdir /www; echo box%d >/www/index.html; httpd -p 8080 -h /www", n)})
		ep, err := sb.Endpoint(t.Context(), 8080)
		require.NoError(t, err)
		assert.Regexp(t, `^http://127\.0\.0\.1:\d+$`, ep.URL)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
		resp, err := client.Get(ep.URL + "/index.html")
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, fmt.Sprintf("box%d\n", n), string(body))
		urls = append(urls, ep.URL)
		_, err = sb.Endpoint(t.Context(), 81)
		assert.Equal(t, core.KindInvalid, core.KindOf(err))
		assert.ErrorContains(t, err, "not declared")
	}
	assert.NotEqual(t, urls[0], urls[1])
}

func TestDockerConnect(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		sb := begin(t, newDocker(t, cfg), core.Spec{Image: tag, Workdir: "/srv/wd", Env: map[string]string{"NL": "x\ny"}, Ports: []int{80}})
		descriptor, err := sb.Serialize(t.Context(), "")
		require.NoError(t, err)
		assert.Equal(t, map[string]any{"sandbox_id": sb.ID()}, descriptor)
		// The other side is configured otherwise; the sandbox is what it is.
		other, err := core.Connect(t.Context(), newDocker(t, nil), descriptor)
		require.NoError(t, err)
		assert.Equal(t, "/srv/wd\nx\ny", shell(t, other, core.ExecRequest{Command: `pwd; printf %s "$NL"`}))
		_, err = other.Endpoint(t.Context(), 80)
		require.NoError(t, err)
		require.NoError(t, other.Disconnect())
		assert.Equal(t, "alive\n", shell(t, sb, core.ExecRequest{Command: "echo alive"}))
	})
	p := newDocker(t, nil)
	_, err := core.Connect(t.Context(), p, map[string]any{"sandbox_id": "nemo-gym-none"})
	assert.ErrorContains(t, err, "cannot connect to sandbox nemo-gym-none")
	assert.Equal(t, core.KindNotFound, core.KindOf(err))
	_, err = core.Connect(t.Context(), p, map[string]any{"sandbox_id": "../images/x"})
	assert.ErrorContains(t, err, "no such names")
	_, err = core.Connect(t.Context(), p, map[string]any{})
	assert.ErrorContains(t, err, "requires a sandbox_id")
	assert.Equal(t, core.KindCreate, core.KindOf(err))
}

// Over a socket the host makes the command's pipes and passes their far ends:
// both processes then hold the same pipe, which the kernel shows by its number.
func TestDockerPipeDescriptorsArePassed(t *testing.T) {
	ownState(t)
	sb := begin(t, newDocker(t, dockerWays["socket"]), core.Spec{Image: ownTag(t, testImage)})
	in, hold := io.Pipe()
	l, over := newLines(), make(chan error, 1)
	go func() {
		_, err := sb.Exec(context.Background(), core.ExecRequest{Command: "readlink /proc/self/fd/1; read x", Stdin: in, Timeout: 60 * time.Second}, l)
		over <- err
	}()
	pipe := l.next(t)
	assert.Regexp(t, `^pipe:\[\d+\]$`, pipe)
	found := false
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range fds {
		if what, err := os.Readlink(fd); err == nil && what == pipe {
			found = true
		}
	}
	assert.True(t, found, "no descriptor of this process is %s", pipe)
	require.NoError(t, hold.Close())
	require.NoError(t, <-over)
}

func TestDockerWaitingForATurnCountsTowardTheTimeout(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		sb := begin(t, newDocker(t, with(cfg, "exec", settings{"concurrency": 2})), core.Spec{Image: tag})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		for range 2 {
			l := newLines()
			running.Go(func() {
				_, err := sb.Exec(ctx, core.ExecRequest{Command: "echo up; sleep 100", Timeout: core.Forever}, l)
				assert.True(t, core.IsCanceled(err), "%v", err)
			})
			l.next(t)
		}
		begun := time.Now()
		_, res := try(t, sb, core.ExecRequest{Command: "echo hi", Timeout: time.Second})
		assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
		assert.Contains(t, res.Reason, "timed out after 1s")
		assert.Less(t, time.Since(begun), 4*time.Second)
		st, err := sb.Status(t.Context())
		require.NoError(t, err)
		assert.Equal(t, core.StatusRunning, st, "control calls need no turn")
		cancel()
		running.Wait()
		assert.Equal(t, "hi\n", shell(t, sb, core.ExecRequest{Command: "echo hi"}))
	})
}

// What the engine's own exec gives a command is what one through the agent gets.
func TestDockerAgentAndEngineGiveCommandsTheSame(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	images := map[string]string{
		"root":       tag,
		"no passwd":  variant(t, tag, "uid", "USER 12345"),
		"uid:gid":    variant(t, tag, "pair", "USER 12345:678", "WORKDIR /srv/w"),
		"named user": variant(t, tag, "name", "USER nobody", "ENV A=b", "ENV HOME=/opt"),
	}
	commands := []string{
		"id", "pwd", "umask", "ulimit -a",
		"env | grep -v -E '^(NGS_EXEC|NGS_EXEC_ID|HOSTNAME|SHLVL|PWD|OLDPWD|_)=' | sort",
		"grep -E '^(Cap|Groups|NoNewPrivs|Seccomp|Sig(Ign|Blk)|Uid|Gid)' /proc/self/status",
		"cat /proc/self/oom_score_adj", "ls /proc/$$/fd; true",
	}
	spec := core.Spec{Env: map[string]string{"SPEC": "s"}, ProviderOptions: map[string]any{"run_args": "--ulimit nofile=1111"}}
	for name, ref := range images {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			spec.Image = ref
			want := map[string]string{}
			for _, way := range []string{"engine", "socket", "stream"} {
				sb := begin(t, newDocker(t, dockerWays[way]), spec)
				for _, command := range commands {
					got := shell(t, sb, core.ExecRequest{Command: command})
					if way == "engine" {
						want[command] = got
					} else {
						assert.Equal(t, want[command], got, "%s by way of the %s", command, way)
					}
				}
			}
		})
	}
}

// Nothing of this process, of the engine or of the disk is left after many sandboxes and commands.
func TestDockerReturnsToWhereItWas(t *testing.T) {
	folder := ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		round := func() {
			p := newDocker(t, cfg)
			for range 3 {
				sb := core.NewSandbox(p, core.Spec{Image: tag})
				require.NoError(t, sb.Start(t.Context()))
				shell(t, sb, core.ExecRequest{Command: "echo hi"})
				_, res := try(t, sb, core.ExecRequest{Command: "sleep 100", Timeout: 200 * time.Millisecond})
				assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
				require.NoError(t, sb.Stop(t.Context()))
			}
			require.NoError(t, p.Close(t.Context()))
			_ = engine(t).Close()
		}
		round()
		count := func() int {
			fds, err := filepath.Glob("/proc/self/fd/*")
			require.NoError(t, err)
			return len(fds)
		}
		before := count()
		round()
		assert.Eventually(t, func() bool { return count() <= before }, 5*time.Second, 50*time.Millisecond, "descriptors: %d before", before)
		assert.Empty(t, stillThere(t, tag))
		nothingIn(t, folder)
	})
}
