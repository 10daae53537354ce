package tests

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/tests/standins/registry"
)

// begin makes a sandbox that the test's end removes.
func begin(t testing.TB, p core.Provider, spec core.Spec) *core.Sandbox {
	t.Helper()
	sb, err := tryBegin(t, p, spec)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	return sb
}

func tryBegin(t testing.TB, p core.Provider, spec core.Spec) (*core.Sandbox, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	sb := core.NewSandbox(p, spec)
	err := sb.Start(ctx)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		if err := sb.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return sb, err
}

// loginDir is a folder of the docker command with one login.
func loginDir(t testing.TB, host, user, password string) string {
	dir := t.TempDir()
	raw, err := json.Marshal(map[string]any{"auths": map[string]any{host: map[string]any{
		"auth": base64.StdEncoding.EncodeToString([]byte(user + ":" + password))}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600))
	return dir
}

func lateImage(t testing.TB, ref string) {
	t.Cleanup(func() {
		_, _ = engine(t).ImageRemove(context.Background(), ref, image.RemoveOptions{Force: true})
		_ = engine(t).Close()
	})
}

func busybox(t testing.TB) map[string][]byte {
	program, err := os.ReadFile("/bin/busybox")
	require.NoError(t, err)
	return map[string][]byte{"bin/busybox": program, "bin/sh": program, "bin/printf": program}
}

func TestDockerPullsWithTheStoredLogin(t *testing.T) {
	engine(t)
	ownState(t)
	const password = "hunter2-secret"
	reg := registry.Start("robot", password)
	defer reg.Close()
	ref, err := reg.Put("lab/private:1", runtime.GOARCH, busybox(t))
	require.NoError(t, err)
	lateImage(t, ref)

	for name, dir := range map[string]string{"none": t.TempDir(), "wrong": loginDir(t, reg.Host, "robot", "wrong-"+password)} {
		p := newDocker(t, settings{"connection": settings{"config_dir": dir}})
		_, err = tryBegin(t, p, core.Spec{Image: ref})
		require.Error(t, err, name)
		assert.Equal(t, core.KindCreate, core.KindOf(err))
		var inner *core.Error
		require.ErrorAs(t, errors.Unwrap(err), &inner)
		assert.Equal(t, core.KindAuth, inner.Kind, "%v", err)
		assert.ErrorContains(t, err, ref)
		assert.ErrorContains(t, err, "docker login")
		assert.NotContains(t, err.Error(), password)
	}

	p := newDocker(t, settings{"connection": settings{"config_dir": loginDir(t, reg.Host, "robot", password)}, "create": settings{"pull_policy": "never"}})
	_, err = tryBegin(t, p, core.Spec{Image: ref})
	assert.ErrorContains(t, err, "pull_policy")

	// Many at once want one image: it is fetched once.
	p = newDocker(t, settings{"connection": settings{"config_dir": loginDir(t, reg.Host, "robot", password)}})
	results := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := tryBegin(t, p, core.Spec{Image: ref})
			results <- err
		}()
	}
	for range 3 {
		require.NoError(t, <-results)
	}
	assert.Contains(t, reg.Logins(), "robot")
	assert.LessOrEqual(t, reg.Pulls(), 2, "config and layer")
}

func TestDockerAsksTheCredentialHelper(t *testing.T) {
	engine(t)
	ownState(t)
	reg := registry.Start("robot", "from-the-helper")
	defer reg.Close()
	ref, err := reg.Put("lab/helped:1", runtime.GOARCH, busybox(t))
	require.NoError(t, err)
	lateImage(t, ref)
	bin, dir := t.TempDir(), t.TempDir()
	helper := "#!/bin/sh\n[ \"$1\" = get ] && echo '{\"ServerURL\":\"x\",\"Username\":\"robot\",\"Secret\":\"from-the-helper\"}'\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "docker-credential-lab"), []byte(helper), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"credHelpers": {"`+reg.Host+`": "lab"}}`), 0o600))
	begin(t, newDocker(t, settings{"connection": settings{"config_dir": dir}}), core.Spec{Image: ref})
}

func TestDockerRegistryThatIsNotThere(t *testing.T) {
	engine(t)
	folder := ownState(t)
	begun := time.Now()
	_, err := tryBegin(t, newDocker(t, nil), core.Spec{Image: "docker://127.0.0.1:9/lab/none:1"})
	assert.Equal(t, core.KindCreate, core.KindOf(err))
	assert.ErrorContains(t, err, "127.0.0.1:9/lab/none:1")
	assert.Less(t, time.Since(begun), 20*time.Second)
	nothingIn(t, folder)

	reg := registry.Start("", "")
	defer reg.Close()
	_, err = tryBegin(t, newDocker(t, nil), core.Spec{Image: reg.Host + "/lab/unknown:1"})
	assert.Equal(t, core.KindCreate, core.KindOf(err))
	assert.ErrorContains(t, err, "check the name and the tag")
}

func TestDockerStalledPull(t *testing.T) {
	engine(t)
	folder := ownState(t)
	reg := registry.Start("", "")
	defer reg.Close()
	reg.Silence()
	begun := time.Now()
	_, err := tryBegin(t, newDocker(t, settings{"create": settings{"start_timeout_s": 1}}), core.Spec{Image: reg.Host + "/lab/slow:1"})
	assert.Equal(t, core.KindCreate, core.KindOf(err))
	assert.ErrorContains(t, err, "timed out after 1s")
	assert.ErrorContains(t, err, "/lab/slow:1")
	assert.Less(t, time.Since(begun), 8*time.Second)

	p := newDocker(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() { failed <- core.NewSandbox(p, core.Spec{Image: reg.Host + "/lab/slow2:1"}).Start(ctx) }()
	for path := range reg.Asked() {
		if path == "/v2/lab/slow2/manifests/1" {
			break
		}
	}
	begun = time.Now()
	cancel()
	err = <-failed
	assert.True(t, core.IsCanceled(err), "%v", err)
	assert.Less(t, time.Since(begun), 4*time.Second)
	nothingIn(t, folder)
}

// nothingIn fails when a sandbox's folder is left.
func nothingIn(t testing.TB, folder string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left in %s", e.Name(), folder)
	}
}
