package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/go-connections/nat"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestLabelsTellWhoMadeIt(t *testing.T) {
	labels := newLabels(wayStream, 1500*time.Millisecond)
	assert.Equal(t, "1", labels[labelSandbox])
	assert.Equal(t, strconv.Itoa(os.Getpid()), labels[labelOwnerPID])
	assert.Equal(t, "stream", labels[labelWay])
	assert.Equal(t, "1.5", labels[labelTTL])
	assert.NotEmpty(t, labels[labelRun])
	start, err := strconv.ParseUint(labels[labelOwnerStart], 10, 64)
	require.NoError(t, err)
	assert.NotZero(t, start)
	_, err = time.Parse(time.RFC3339, labels[labelCreated])
	assert.NoError(t, err)
	assert.Equal(t, labels[labelRun], newLabels(waySocket, 0)[labelRun], "one run per process")
	for _, w := range []way{waySocket, wayStream, wayEngine} {
		got, ok := wayOf(w.String())
		assert.True(t, ok)
		assert.Equal(t, w, got)
	}
}

func TestStateIsRead(t *testing.T) {
	for _, c := range []struct {
		state *container.State
		want  core.Status
		says  string
	}{
		{&container.State{Status: "running"}, core.StatusRunning, ""},
		{&container.State{Status: "paused"}, core.StatusPaused, "is paused"},
		{&container.State{Status: "created"}, core.StatusStarting, "created"},
		{&container.State{Status: "restarting"}, core.StatusStarting, "restarting"},
		{&container.State{Status: "exited", ExitCode: 3}, core.StatusStopped, "code 3"},
		{&container.State{Status: "exited", ExitCode: 137, OOMKilled: true}, core.StatusStopped, "out of memory"},
		{&container.State{Status: "removing"}, core.StatusStopped, "ended"},
		{&container.State{Status: "dead", Error: "disk"}, core.StatusStopped, "disk"},
		{&container.State{Status: "dancing"}, core.StatusUnknown, "dancing"},
		{nil, core.StatusUnknown, "no state"},
	} {
		v := stateVerdict(c.state)
		assert.Equal(t, c.want, v.status)
		assert.Contains(t, v.reason, c.says)
	}
}

func TestImageNames(t *testing.T) {
	for given, want := range map[string]string{"docker://debian:12": "debian:12", "lab/x": "lab/x", "sha256:" + strings.Repeat("a", 64): "sha256:" + strings.Repeat("a", 64)} {
		got, err := imageName(given)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	for given, says := range map[string]string{"": "image is required", "docker://": "image is required", " x": "space", "UPPER/Case": "UPPER/Case", "a:b:c:d": "a:b:c:d"} {
		_, err := imageName(given)
		assert.ErrorContains(t, err, says)
	}
}

func TestPullProblemsAreSorted(t *testing.T) {
	for text, kind := range map[string]core.Kind{
		"unauthorized: authentication required":                           core.KindAuth,
		"pull access denied for x, repository does not exist":             core.KindAuth,
		"manifest for x:1 not found: manifest unknown":                    core.KindNotFound,
		"no matching manifest for linux/amd64 in the manifest list":       core.KindNotFound,
		"dial tcp 127.0.0.1:9: connect: connection refused":               core.KindInternal,
		"Get \"http://127.0.0.1:9/v2/\": net/http: request canceled":      core.KindInternal,
		"failed to register layer: write /x: no space left on device yes": core.KindInternal,
	} {
		err := pullError("127.0.0.1:9/x:1", errors.New(text))
		assert.Equal(t, kind, core.KindOf(err), text)
		assert.ErrorContains(t, err, "127.0.0.1:9/x:1")
		assert.ErrorContains(t, err, text)
	}
}

func TestPullEndsWithTheEnginesError(t *testing.T) {
	ok := `{"status":"Pulling from x","id":"1"}` + "\n" + `{"status":"Downloading","id":"a","progressDetail":{"current":1}}` + "\n"
	assert.NoError(t, followPull(t.Context(), "x", strings.NewReader(ok)))
	assert.ErrorContains(t, followPull(t.Context(), "x", strings.NewReader(ok+`{"errorDetail":{"message":"boom"},"error":"boom"}`)), "boom")
	assert.ErrorContains(t, followPull(t.Context(), "x", strings.NewReader(ok+`{"status":"Down`)), "broke off")
}

func TestPlatforms(t *testing.T) {
	amd := engineVersion{OS: "linux", Arch: "amd64"}
	img := func(os, arch string) image.InspectResponse { return image.InspectResponse{Os: os, Architecture: arch} }
	assert.NoError(t, checkPlatform("x", img("linux", "amd64"), amd, ""))
	assert.NoError(t, checkPlatform("x", img("linux", "386"), amd, ""))
	assert.NoError(t, checkPlatform("x", img("linux", "arm64"), amd, "linux/arm64"))
	assert.NoError(t, checkPlatform("x", img("", ""), amd, ""))
	assert.ErrorContains(t, checkPlatform("x", img("linux", "arm64"), amd, ""), "platform linux/arm64")
	assert.ErrorContains(t, checkPlatform("x", img("windows", "amd64"), amd, ""), "windows")
	assert.ErrorContains(t, checkPlatform("x", img("linux", "amd64"), engineVersion{OS: "windows"}, ""), "linux containers")
}

func TestEndpointIsChosen(t *testing.T) {
	b := func(ip, port string) nat.PortBinding { return nat.PortBinding{HostIP: ip, HostPort: port} }
	for _, c := range []struct {
		bindings []nat.PortBinding
		want     string
	}{
		{[]nat.PortBinding{b("10.0.0.1", "2"), b("127.0.0.1", "1")}, "http://127.0.0.1:1"},
		{[]nat.PortBinding{b("0.0.0.0", "3")}, "http://127.0.0.1:3"},
		{[]nat.PortBinding{b("::", "4")}, "http://127.0.0.1:4"},
		{[]nat.PortBinding{b("::1", "5")}, "http://[::1]:5"},
		{[]nat.PortBinding{b("", "6")}, "http://127.0.0.1:6"},
	} {
		got, err := endpointURL(c.bindings, "127.0.0.1", 80)
		require.NoError(t, err)
		assert.Equal(t, c.want, got.URL)
	}
	_, err := endpointURL(nil, "127.0.0.1", 80)
	assert.ErrorContains(t, err, "no host binding")
	for _, bad := range []nat.PortBinding{b("127.0.0.1", ""), b("127.0.0.1", "70000"), b("here", "80")} {
		_, err := endpointURL([]nat.PortBinding{bad}, "127.0.0.1", 80)
		assert.ErrorContains(t, err, "invalid host binding")
	}
}

func TestOptionsOfTheSpec(t *testing.T) {
	cfg := defaultConfig()
	make := func(options map[string]any) (*plan, error) {
		return newPlan(&cfg, core.Spec{ProviderOptions: options}, "x", image.InspectResponse{}, engineVersion{})
	}
	p, err := make(map[string]any{"volumes": "/a:/b:ro", "run_args": []any{"--tmpfs", "/t"}, "colour": "red"})
	require.NoError(t, err)
	assert.Equal(t, []string{"/a:/b:ro"}, p.flags.host.Binds)
	assert.Contains(t, p.flags.host.Tmpfs, "/t")
	p, err = make(map[string]any{"volumes": []any{"/a:/b", "c:/d"}, "run_args": "--shm-size 1m --privileged"})
	require.NoError(t, err)
	assert.True(t, p.flags.host.Privileged)
	for option, value := range map[string]any{"volumes": 3, "run_args": []any{"--tmpfs", 4}} {
		_, err := make(map[string]any{option: value})
		assert.ErrorContains(t, err, `"`+option+`"`)
	}
	_, err = make(map[string]any{"run_args": []any{"--detach"}})
	assert.ErrorContains(t, err, "--detach")
	cfg.Create.ApplyResourceLimits = false
	p, err = newPlan(&cfg, core.Spec{Resources: core.Resources{CPU: 2, MemoryMiB: 64, GPU: 1}, Ports: []int{80}}, "x", image.InspectResponse{}, engineVersion{})
	require.NoError(t, err)
	assert.Zero(t, p.flags.host.NanoCPUs)
	assert.Zero(t, p.flags.host.Memory)
	assert.Len(t, p.flags.host.DeviceRequests, 1)
	assert.Equal(t, "127.0.0.1", p.flags.host.PortBindings["80/tcp"][0].HostIP)
}

// Long commands must arrive in any shell, whatever way they take.
func TestLongCommandsArriveWhole(t *testing.T) {
	for _, n := range []int{10, argLimit - 3, argLimit - 2, argLimit - 1, argLimit, 3 * argLimit} {
		pad := strings.Repeat("x", max(0, n-len(": ; cat; printf '%s|' \"$#\" end\n")))
		command := ": " + pad + "; cat; printf '%s|' \"$#\" end\n"
		for _, input := range []string{"", "input "} {
			argv, stdin := shellArgv("sh", command, nil)
			want := "0|end|"
			if input != "" {
				argv, stdin = shellArgv("sh", command, strings.NewReader(input))
				want = input + want
			}
			cmd := exec.Command(argv[0], argv[1:]...)
			cmd.Stdin = stdin
			out, err := cmd.Output()
			require.NoError(t, err, "%d bytes", n)
			assert.Equal(t, want, string(out), "%d bytes, input %q", n, input)
		}
	}
	for _, command := range []string{"--help", "-c 'echo taken'", "+x"} {
		argv, _ := shellArgv("sh", command, nil)
		out, err := exec.Command(argv[0], argv[1:]...).Output()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, 127, exit.ExitCode(), command)
		assert.Empty(t, out)
	}
}

// The tag walk must find a whole tree, and nothing beside it.
func TestKillScriptFindsTheTree(t *testing.T) {
	for _, shell := range [][]string{{"sh"}, {"busybox", "sh"}, {"bash"}} {
		if _, err := exec.LookPath(shell[0]); err != nil {
			t.Fatalf("%s: %v", shell[0], err)
		}
		tag := randomHex(16)
		tree := exec.Command("sh", "-c", `trap '' TERM; sleep 600 & setsid env -i sleep 600 & (trap '' TERM; exec sleep 600) & echo up; wait`)
		tree.Env = append(os.Environ(), "NOISE=a\nb", tagVariable+"="+tag)
		up, err := tree.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, tree.Start())
		_, err = up.Read(make([]byte, 8))
		require.NoError(t, err)
		beside := exec.Command("sleep", "600")
		require.NoError(t, beside.Start())

		script := append(append([]string{}, shell[1:]...), "-c", killTree, "sh", tag, "1")
		out, err := exec.Command(shell[0], script...).CombinedOutput()
		assert.NoError(t, err, "%v: %s", shell, out)
		err = tree.Wait()
		assert.ErrorContains(t, err, "killed")
		left, _ := exec.Command("sh", "-c", `grep -l "`+tag+`" /proc/[0-9]*/environ 2>/dev/null`).Output()
		assert.Empty(t, string(left))
		require.NoError(t, beside.Process.Kill())
		assert.ErrorContains(t, beside.Wait(), "killed", "only by us")
	}
}

func TestFirstChunkIsHeldOnlyWhenItCouldBeTheEngines(t *testing.T) {
	var got bytes.Buffer
	sink := sinkTo(func(_ core.Stream, p []byte) error { got.Write(p); return nil })
	f := &firstChunk{next: &gate{sink: sink}}
	_, _ = f.Write([]byte("OCI runtime exec failed\r\n"))
	assert.Empty(t, got.String())
	assert.Equal(t, "OCI runtime exec failed\r\n", f.take())
	f = &firstChunk{next: &gate{sink: sink}}
	_, _ = f.Write([]byte("dos line\r\n"))
	_, _ = f.Write([]byte("more"))
	assert.Equal(t, "dos line\r\nmore", got.String())
	got.Reset()
	g := &gate{sink: sinkTo(func(core.Stream, []byte) error { return errors.New("no more") })}
	n, err := g.Write([]byte("x"))
	assert.Equal(t, 1, n)
	assert.NoError(t, err, "a sink that refuses does not end the command")
}

type sinkTo func(core.Stream, []byte) error

func (f sinkTo) Write(s core.Stream, p []byte) error { return f(s, p) }

func TestFlightIsSharedAndEndsWithItsLastWaiter(t *testing.T) {
	var f flight[int]
	var runs atomic.Int32
	begun, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	work := func(ctx context.Context) (int, error) {
		runs.Add(1)
		close(begun)
		defer close(ended)
		select {
		case <-release:
			return 7, nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	impatient, giveUp := context.WithCancel(t.Context())
	results := make(chan error, 3)
	go func() { _, err := f.do(impatient, "k", work); results <- err }()
	<-begun
	for range 2 {
		go func() {
			v, err := f.do(t.Context(), "k", work)
			if err == nil && v != 7 {
				err = fmt.Errorf("got %d", v)
			}
			results <- err
		}()
	}
	require.Eventually(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.calls["k"].waiters == 3
	}, 5*time.Second, time.Millisecond)
	giveUp()
	assert.ErrorIs(t, <-results, context.Canceled)
	close(release)
	assert.NoError(t, <-results)
	assert.NoError(t, <-results)
	assert.EqualValues(t, 1, runs.Load())

	begun, release, ended = make(chan struct{}), make(chan struct{}), make(chan struct{})
	alone, leave := context.WithCancel(t.Context())
	go func() { <-begun; leave() }()
	_, err := f.do(alone, "k", work)
	assert.ErrorIs(t, err, context.Canceled)
	<-ended
}
