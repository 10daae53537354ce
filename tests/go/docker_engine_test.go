package tests

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/docker"
)

const testImage = "lab/busybox:1"

// theEngine is the tests' own connection to the engine, past the code under test.
var theEngine = sync.OnceValues(func() (*client.Client, error) {
	c, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	if _, err := c.ImageInspect(ctx, testImage); err == nil {
		return c, nil
	} else if !strings.Contains(err.Error(), "No such image") {
		return nil, err
	}
	archive, err := imageTree()
	if err != nil {
		return nil, err
	}
	out, err := c.ImageImport(ctx, image.ImportSource{Source: archive, SourceName: "-"}, testImage, image.ImportOptions{})
	if err != nil {
		return nil, err
	}
	defer out.Close()
	_, err = io.Copy(io.Discard, out)
	return c, err
})

// imageTree is a root file system: a static busybox under all its names, and two users.
func imageTree() (io.Reader, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	names, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err == nil {
			err = w.WriteHeader(&h)
		}
		if err == nil {
			_, err = w.Write(data)
		}
	}
	for dir, mode := range map[string]int64{"bin/": 0o755, "etc/": 0o755, "root/": 0o700, "tmp/": 0o1777, "dev/": 0o755, "proc/": 0o755, "sys/": 0o755} {
		put(tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: mode}, nil)
	}
	put(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for _, name := range strings.Fields(string(names)) {
		if name != "busybox" {
			put(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
		}
	}
	put(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n"))
	put(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	if err == nil {
		err = w.Close()
	}
	return &b, err
}

// engine gives the tests' connection. Without an engine the test fails: a green run has seen containers.
func engine(t testing.TB) *client.Client {
	t.Helper()
	c, err := theEngine()
	if err != nil {
		t.Fatalf("these tests need a Docker engine and the image %s: %v", testImage, err)
	}
	return c
}

// ownTag gives the test a tag of its own for the image, so that its containers can be told from all others.
func ownTag(t testing.TB, ref string) string {
	t.Helper()
	c := engine(t)
	name := strings.NewReplacer("/", "-", "_", "-").Replace(strings.ToLower(t.Name()))
	// The same test may be running in another process.
	tag := fmt.Sprintf("lab-test/%s-%d:1", name, os.Getpid())
	if err := c.ImageTag(context.Background(), ref, tag); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dropImage(t, tag)
	})
	return tag
}

// containersOf lists what was made of an image, in any state.
func containersOf(t testing.TB, ref string) []string {
	t.Helper()
	all, err := engine(t).ContainerList(context.Background(), container.ListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	// Idle connections of the tests would be taken for leaks of the code under test.
	_ = engine(t).Close()
	var found []string
	for _, c := range all {
		if c.Image == ref {
			found = append(found, c.ID)
		}
	}
	return found
}

// stillThere is containersOf after a while: an engine's list lags a moment behind.
func stillThere(t testing.TB, ref string) []string {
	t.Helper()
	end := time.Now().Add(5 * time.Second)
	for {
		found := containersOf(t, ref)
		if len(found) == 0 || time.Now().After(end) {
			return found
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// variant makes an image of another with a changed configuration.
func variant(t testing.TB, ref, suffix string, changes ...string) string {
	t.Helper()
	c, ctx := engine(t), context.Background()
	made, err := c.ContainerCreate(ctx, &container.Config{Image: ref, Cmd: []string{"sh"}}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.ContainerRemove(ctx, made.ID, container.RemoveOptions{Force: true}) }()
	tag := strings.Replace(ref, ":1", ":"+suffix, 1)
	if _, err := c.ContainerCommit(ctx, made.ID, container.CommitOptions{Reference: tag, Changes: changes}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropImage(t, tag) })
	return tag
}

// importFiles makes an image of a few files.
func importFiles(t testing.TB, tag string, o image.ImportOptions, files map[string][]byte) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out, err := engine(t).ImageImport(context.Background(), image.ImportSource{Source: &b, SourceName: "-"}, tag, o)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(io.Discard, out); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dropImage(t, tag) })
}

// dropImage removes an image, of which no container may be left.
func dropImage(t testing.TB, tag string) {
	t.Helper()
	for _, id := range stillThere(t, tag) {
		t.Errorf("container %s is left", id)
		_ = engine(t).ContainerRemove(context.Background(), id, container.RemoveOptions{Force: true})
	}
	if _, err := engine(t).ImageRemove(context.Background(), tag, image.RemoveOptions{}); err != nil {
		t.Errorf("remove the image %s: %v", tag, err)
	}
}

// settings is a provider's configuration block.
type settings = map[string]any

// newDocker makes a provider whose files lie in the test's folder.
func newDocker(t testing.TB, cfg settings) core.Provider {
	t.Helper()
	raw, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p, err := docker.New(raw)
	if err != nil {
		t.Fatalf("make the provider: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("close the provider: %v", err)
		}
	})
	return p
}

// ownState keeps this test's sandbox folders apart from others'.
func ownState(t *testing.T) string {
	dir := t.TempDir()
	t.Setenv("XDG_STATE_HOME", dir)
	return filepath.Join(dir, "nemo-gym-sandbox", "s")
}
