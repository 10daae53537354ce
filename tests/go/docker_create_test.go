package tests

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/tests/standins/registry"
)

// dockerWays are the configurations that make the three ways into a container.
var dockerWays = map[string]settings{
	"socket": {"create": settings{"agent_transport": "socket"}, "exec": settings{"mode": "agent"}},
	"stream": {"create": settings{"agent_transport": "stream"}, "exec": settings{"mode": "agent"}},
	"engine": {"exec": settings{"mode": "engine"}},
}

// eachWay runs a test for each of them.
func eachWay(t *testing.T, test func(t *testing.T, way string, cfg settings)) {
	for _, way := range []string{"socket", "stream", "engine"} {
		t.Run(way, func(t *testing.T) { test(t, way, dockerWays[way]) })
	}
}

// with adds to a configuration block.
func with(cfg settings, block string, more settings) settings {
	out, merged := settings{}, settings{}
	for k, v := range cfg {
		out[k] = v
	}
	if old, ok := cfg[block].(settings); ok {
		for k, v := range old {
			merged[k] = v
		}
	}
	for k, v := range more {
		merged[k] = v
	}
	out[block] = merged
	return out
}

func TestDockerCreateErrorsSayWhatIsWrong(t *testing.T) {
	folder := ownState(t)
	tag := ownTag(t, testImage)
	reg := registry.Start("", "")
	defer reg.Close()
	arm, err := reg.Put("lab/arm:1", "arm64", map[string][]byte{"bin/sh": []byte("x")})
	require.NoError(t, err)
	lateImage(t, arm)
	elf := append([]byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"), make([]byte, 60)...)
	disguised := strings.Replace(tag, ":1", ":disguised", 1)
	importFiles(t, disguised, image.ImportOptions{}, map[string][]byte{"bin/sh": elf, "bin/sleep": elf})

	for _, c := range []struct {
		name string
		cfg  settings
		spec core.Spec
		says string
	}{
		{"no image", nil, core.Spec{}, "image is required"},
		{"bad name", nil, core.Spec{Image: "UPPER:1"}, "UPPER:1"},
		{"image for another machine", nil, core.Spec{Image: arm}, "platform linux/arm64"},
		{"image that hides its machine", nil, core.Spec{Image: disguised}, "architecture"},
		{"the same without an agent", dockerWays["engine"], core.Spec{Image: disguised}, "architecture"},
		{"unknown flag", nil, core.Spec{Image: tag, ProviderOptions: map[string]any{"run_args": []any{"--detach"}}}, "--detach"},
		{"option of a wrong type", nil, core.Spec{Image: tag, ProviderOptions: map[string]any{"volumes": 7}}, `"volumes"`},
		{"unknown network", settings{"create": settings{"network": "no-such-net"}}, core.Spec{Image: tag}, "no-such-net"},
		{"unknown runtime", nil, core.Spec{Image: tag, ProviderOptions: map[string]any{"run_args": "--runtime none"}}, "runtime"},
		{"no shell to keep alive", with(dockerWays["engine"], "create", settings{"keepalive_shell": "/no/shell"}), core.Spec{Image: tag}, "/no/shell"},
		{"main process that ends", with(dockerWays["engine"], "create", settings{"keepalive_cmd": "exit 3"}), core.Spec{Image: tag}, "ended"},
		{"entry point that is not there", nil, core.Spec{Image: tag, Entrypoint: []string{"/no/program"}}, "/no/program"},
		{"host that is no engine", settings{"connection": settings{"host": "unix://" + filepath.Join(t.TempDir(), "none.sock")}}, core.Spec{Image: tag}, "does not exist"},
		{"sidecar whose image is not there", nil, core.Spec{Image: tag, Sidecars: []core.SidecarSpec{{Name: "a", Image: "127.0.0.1:9/none"}}}, `sidecar "a"`},
		{"volume whose source is missing", nil, core.Spec{Image: tag, ProviderOptions: map[string]any{"run_args": []any{"--mount", "type=bind,src=/no/such/source,dst=/x"}}}, "/no/such/source"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			begun := time.Now()
			_, err := tryBegin(t, newDocker(t, c.cfg), c.spec)
			require.Error(t, err)
			assert.Contains(t, []core.Kind{core.KindCreate, core.KindVerification}, core.KindOf(err), "%v", err)
			assert.ErrorContains(t, err, c.says)
			assert.Less(t, time.Since(begun), 20*time.Second)
			nothingIn(t, folder)
			for _, ref := range []string{tag, arm, disguised} {
				assert.Empty(t, stillThere(t, ref))
			}
		})
	}
}

func TestDockerProbeDecides(t *testing.T) {
	folder := ownState(t)
	tag := ownTag(t, testImage)
	for name, c := range map[string]struct {
		probe settings
		says  string
	}{
		"code":     {settings{"command": "echo no >&2; exit 4"}, "code 4: no"},
		"output":   {settings{"command": "echo other", "expected_stdout": "ready"}, "other"},
		"timeout":  {settings{"command": "sleep 60", "timeout_s": 0.3}, "timed out"},
		"deadline": {settings{"command": "false", "deadline_s": 1}, "within 1s"},
		"unstable": {settings{"command": "test ! -e /tmp/twice || exit 1; touch /tmp/twice", "expected_stdout": nil, "stable_count": 2, "deadline_s": 1}, "within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tryBegin(t, newDocker(t, settings{"probe": c.probe}), core.Spec{Image: tag})
			assert.Equal(t, core.KindVerification, core.KindOf(err), "%v", err)
			assert.ErrorContains(t, err, c.says)
			nothingIn(t, folder)
			assert.Empty(t, stillThere(t, tag))
		})
	}
	begin(t, newDocker(t, settings{"probe": settings{"command": "echo x >>/tmp/n; [ $(wc -l </tmp/n) -ge 3 ]", "expected_stdout": nil, "deadline_s": 30, "stable_count": 2}}), core.Spec{Image: tag})
	begin(t, newDocker(t, settings{"probe": settings{"command": nil}}), core.Spec{Image: tag})
}

// A create that is given up at any moment leaves nothing.
func TestDockerCreateCancelledAtManyMoments(t *testing.T) {
	folder := ownState(t)
	tag := ownTag(t, testImage)
	eachWay(t, func(t *testing.T, _ string, cfg settings) {
		p := newDocker(t, cfg)
		whole := time.Now()
		sb := core.NewSandbox(p, core.Spec{Image: tag})
		require.NoError(t, sb.Start(t.Context()))
		took := time.Since(whole)
		require.NoError(t, sb.Stop(t.Context()))
		const moments = 14
		for n := range moments {
			ctx, cancel := context.WithTimeout(t.Context(), took*time.Duration(n)/(moments-2))
			sb := core.NewSandbox(p, core.Spec{Image: tag})
			err := sb.Start(ctx)
			cancel()
			if err == nil {
				require.NoError(t, sb.Stop(t.Context()))
			}
			assert.Empty(t, stillThere(t, tag), "given up after %d/%d of a start", n, moments-2)
			nothingIn(t, folder)
		}
	})
}

func TestDockerStartTimeout(t *testing.T) {
	folder := ownState(t)
	tag := ownTag(t, testImage)
	_, err := tryBegin(t, newDocker(t, settings{"create": settings{"start_timeout_s": 0.05}}), core.Spec{Image: tag})
	assert.Equal(t, core.KindCreate, core.KindOf(err), "%v", err)
	assert.ErrorContains(t, err, "timed out after 0.05s")
	nothingIn(t, folder)

	// An engine that accepts and keeps silent.
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "engine.sock"))
	require.NoError(t, err)
	defer l.Close()
	begun := time.Now()
	_, err = tryBegin(t, newDocker(t, settings{"create": settings{"start_timeout_s": 1}, "connection": settings{"host": "unix://" + l.Addr().String()}}), core.Spec{Image: tag})
	assert.ErrorContains(t, err, "timed out after 1s")
	assert.ErrorContains(t, err, "asking the engine")
	assert.Less(t, time.Since(begun), 10*time.Second)
}

// helperRole, in the environment, makes the test binary do one thing for a test that needs another kind of process.
const helperRole = "NGS_TEST_DOCKER_ROLE"

// TestDockerHelperProcess is what the test binary does for others; by itself it only checks that it was not asked.
func TestDockerHelperProcess(t *testing.T) {
	role := os.Getenv(helperRole)
	if role == "" {
		return
	}
	var cfg settings
	if role == "socket-only" {
		cfg = settings{"create": settings{"agent_transport": "socket"}}
	}
	p := newDocker(t, cfg)
	sb, err := tryBegin(t, p, core.Spec{Image: os.Getenv("NGS_TEST_DOCKER_IMAGE")})
	if err != nil {
		fmt.Println("ERROR", err)
		return
	}
	out := core.NewCollector(0)
	defer out.Close()
	res, err := sb.Exec(t.Context(), core.ExecRequest{Command: "cat /proc/1/cmdline | tr '\\0' ' '"}, out)
	fmt.Println("RESULT", res, err, out.Output(core.Stdout).String())
}

// asHelper runs the test binary in a role, changed by edit.
func asHelper(t *testing.T, role, tag string, edit func(*exec.Cmd)) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	// Where another user can run it.
	dir, err := os.MkdirTemp("/tmp", "ngs-helper-")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	program, err := os.ReadFile(self)
	require.NoError(t, err)
	copied := filepath.Join(dir, "helper")
	require.NoError(t, os.WriteFile(copied, program, 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, copied, "-test.run=^TestDockerHelperProcess$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), helperRole+"="+role, "NGS_TEST_DOCKER_IMAGE="+tag)
	edit(cmd)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

func TestDockerSocketOfAnotherUser(t *testing.T) {
	tag := ownTag(t, testImage)
	home := t.TempDir()
	require.NoError(t, os.Chmod(home, 0o777))
	out := asHelper(t, "default", tag, func(cmd *exec.Cmd) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Env = append(cmd.Env, "HOME=/tmp", "XDG_STATE_HOME=", "XDG_CACHE_HOME=")
	})
	assert.Contains(t, out, "ERROR docker create: permission denied on the Docker engine's socket")
	assert.Contains(t, out, "group")
}

// private mounts a folder of its own over dir for the helper: the engine does not see what is in it.
func private(cmd *exec.Cmd, dir, options string) {
	script := `mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"`
	cmd.Args = append([]string{"unshare", "-m", "sh", "-c", script, "sh", options, dir}, append([]string{cmd.Path}, cmd.Args[1:]...)...)
	path, _ := exec.LookPath("unshare")
	cmd.Path = path
}

func TestDockerEngineThatDoesNotSeeOurFiles(t *testing.T) {
	tag := ownTag(t, testImage)
	state := t.TempDir()
	out := asHelper(t, "default", tag, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "XDG_STATE_HOME="+state)
		private(cmd, state, "mode=700")
	})
	assert.Contains(t, out, "RESULT")
	assert.Contains(t, out, "-claim", "over the stream of an exec")
}

func TestDockerAgentThatMayNotRun(t *testing.T) {
	tag := ownTag(t, testImage)
	cache := t.TempDir()
	out := asHelper(t, "socket-only", tag, func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+cache)
		private(cmd, cache, "noexec,mode=755")
	})
	assert.Contains(t, out, "RESULT")
	assert.Contains(t, out, "while :; do sleep 3600; done", "by execs of the engine")
	assert.Contains(t, out, "no agent can run in sandboxes here")
}

func TestDockerVolumeWithTheAgentIsFilledAgain(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	p := newDocker(t, dockerWays["stream"])
	sb := begin(t, p, core.Spec{Image: tag})
	c, err := engine(t).ContainerInspect(t.Context(), sb.ID())
	require.NoError(t, err)
	name := ""
	for _, m := range c.Mounts {
		if strings.HasPrefix(m.Name, "nemo-gym-sandbox-agent-") {
			name = m.Name
		}
	}
	require.NotEmpty(t, name)
	require.NoError(t, sb.Stop(t.Context()))
	if err := engine(t).VolumeRemove(t.Context(), name, false); err != nil {
		require.ErrorContains(t, err, "in use", "another test has a sandbox on this volume")
	}
	begin(t, p, core.Spec{Image: tag})
	_ = engine(t).Close()
}

func TestDockerContainerIsAsAsked(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	host := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(host, "given"), []byte("from here"), 0o644))
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		p := newDocker(t, with(cfg, "create", settings{"pids_limit": 200, "security_opt": []string{"no-new-privileges"}, "extra_run_args": []string{"--hostname", "boxy", "--label", "team=lab"}}))
		sb := begin(t, p, core.Spec{
			Image: "docker://" + tag, Workdir: "/srv/new", TTL: time.Hour,
			Env:             map[string]string{"GREETING": "it's\nme", "HOME": "/srv/home"},
			Files:           []core.File{{Path: "notes/a.txt", Content: "one"}, {Path: "/etc/b.txt", Content: "☕"}},
			Resources:       core.Resources{CPU: 1.5, MemoryMiB: 128, DiskGiB: 9},
			Ports:           []int{8080},
			ProviderOptions: map[string]any{"volumes": []any{host + ":/given:ro"}, "run_args": []any{"--tmpfs", "/scratch", "--ulimit", "nofile=1234"}, "unknown": 1},
		})
		c, err := engine(t).ContainerInspect(t.Context(), sb.ID())
		require.NoError(t, err)
		assert.Regexp(t, `^nemo-gym-[0-9a-f]{32}$`, sb.ID())
		assert.Equal(t, "1", c.Config.Labels["nemo-gym.sandbox"])
		assert.Equal(t, "lab", c.Config.Labels["team"])
		for _, l := range []string{"run", "owner-pid", "owner-start", "host", "created", "version"} {
			assert.NotEmpty(t, c.Config.Labels["nemo-gym."+l], l)
		}
		assert.Equal(t, tag, c.Config.Image)
		assert.EqualValues(t, 1.5e9, c.HostConfig.NanoCPUs)
		assert.EqualValues(t, 128<<20, c.HostConfig.Memory)
		assert.EqualValues(t, 128<<20, c.HostConfig.MemorySwap)
		assert.EqualValues(t, 200, *c.HostConfig.PidsLimit)
		assert.Equal(t, []string{"NONE"}, c.Config.Healthcheck.Test)
		assert.True(t, c.HostConfig.AutoRemove)
		joined := strings.Join(append(c.Config.Entrypoint, c.Config.Cmd...), " ")
		assert.NotContains(t, joined, "it's")
		out := shell(t, sb, core.ExecRequest{Command: `hostname; pwd; printf '%s|' "$GREETING" "$HOME"; cat notes/a.txt /etc/b.txt /given/given; ulimit -n; touch /given/x 2>/dev/null || echo read-only; touch /scratch/x && mount | grep -c 'on /scratch type tmpfs'`})
		assert.Equal(t, "boxy\n/srv/new\nit's\nme|/srv/home|one☕from here1234\nread-only\n1\n", out)

		up, back := filepath.Join(t.TempDir(), "up"), filepath.Join(t.TempDir(), "back")
		require.NoError(t, os.WriteFile(up, []byte("into the tmpfs"), 0o640))
		require.NoError(t, sb.Upload(t.Context(), up, "/scratch/d/up"))
		assert.Equal(t, "into the tmpfs640", shell(t, sb, core.ExecRequest{Command: "cat /scratch/d/up; stat -c %a /scratch/d/up | tr -d '\\n'"}))
		require.NoError(t, sb.Download(t.Context(), "/scratch/d/up", back))
		got, err := os.ReadFile(back)
		require.NoError(t, err)
		assert.Equal(t, "into the tmpfs", string(got))
		_ = engine(t).Close()
	})
}

func TestDockerOddImages(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	exits := variant(t, tag, "exits", `ENTRYPOINT ["/bin/false"]`, `CMD ["x"]`, `HEALTHCHECK CMD false`)
	user := variant(t, tag, "user", `USER 12345`, `WORKDIR /srv/image`, `ENV FROM=image`)
	named := variant(t, tag, "named", `USER nobody`, `ENV HOME=/opt/home`)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		p := newDocker(t, cfg)
		assert.Equal(t, "ok\n", shell(t, begin(t, p, core.Spec{Image: exits}), core.ExecRequest{Command: "echo ok"}))
		sb := begin(t, p, core.Spec{Image: user})
		assert.Equal(t, "12345 0 /srv/image image /\n", shell(t, sb, core.ExecRequest{Command: `cd; echo "$(id -u) $(id -g) /srv/image $FROM $HOME"`}))
		assert.Equal(t, "/srv/image\n", shell(t, sb, core.ExecRequest{Command: "pwd"}))
		assert.Equal(t, "0\n", shell(t, sb, core.ExecRequest{Command: "id -u", User: "root"}))
		assert.Equal(t, "65534 65534\n", shell(t, sb, core.ExecRequest{Command: `echo "$(id -u) $(id -g)"`, User: "nobody"}))
		assert.Equal(t, "7\n8\n", shell(t, sb, core.ExecRequest{Command: "id -u; id -g", User: "7:8"}))
		up := filepath.Join(t.TempDir(), "secret")
		require.NoError(t, os.WriteFile(up, []byte("data\n"), 0o600))
		require.NoError(t, os.Chown(up, 4321, 4321))
		require.NoError(t, sb.Upload(t.Context(), up, "/srv/in/deep/secret"))
		assert.Equal(t, "data\n12345\n12345\n", shell(t, sb, core.ExecRequest{Command: "cat /srv/in/deep/secret; stat -c %u /srv/in/deep/secret /srv/in"}))
		sb = begin(t, p, core.Spec{Image: named})
		assert.Equal(t, "65534 /opt/home\n", shell(t, sb, core.ExecRequest{Command: `echo "$(id -u) $HOME"`}))
	})
}

func TestDockerClosedContainers(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	user := variant(t, tag, "user", `USER 12345`)
	eachWay(t, func(t *testing.T, way string, cfg settings) {
		p := newDocker(t, with(cfg, "create", settings{"cap_drop": []string{"ALL"}, "read_only": true, "network": "none"}))
		for ref, uid := range map[string]string{tag: "0", user: "12345"} {
			sb := begin(t, p, core.Spec{Image: ref, ProviderOptions: map[string]any{"run_args": "--tmpfs /tmp"}})
			assert.Equal(t, uid+"\nCapEff:\t0000000000000000\n", shell(t, sb, core.ExecRequest{Command: "id -u; grep CapEff /proc/self/status"}))
			_, res := try(t, sb, core.ExecRequest{Command: "touch /new || ip link | grep -q eth0"})
			assert.NotZero(t, res.ExitCode)
			out, res := try(t, sb, core.ExecRequest{Command: "sleep 60", Timeout: 300 * time.Millisecond})
			assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType, out)
			if way != "engine" {
				_, res = try(t, sb, core.ExecRequest{Command: "id -u", User: "7"})
				assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
				assert.Contains(t, res.Reason, "user")
			}
		}
	})
}

// shell runs a command that has to succeed and gives what it printed.
func shell(t testing.TB, sb *core.Sandbox, req core.ExecRequest) string {
	t.Helper()
	out, res := try(t, sb, req)
	if res.ExitCode != 0 || res.ErrorType != "" {
		t.Fatalf("%q: %+v, output %q", req.Command, res, out)
	}
	return out
}

// try runs a command and gives what it printed to both outputs.
func try(t testing.TB, sb *core.Sandbox, req core.ExecRequest) (string, core.ExecResult) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	c := core.NewCollector(0)
	defer c.Close()
	res, err := sb.Exec(ctx, req, c)
	if err != nil {
		t.Fatalf("%q: %v", req.Command, err)
	}
	return c.Output(core.Stdout).String() + c.Output(core.Stderr).String(), res
}
