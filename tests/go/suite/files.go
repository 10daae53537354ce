package suite

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func (b *box) upload(t testing.TB, local, remote string) {
	t.Helper()
	if err := b.sb.Upload(b.context(t), local, remote); err != nil {
		t.Fatalf("upload to %q: %v", remote, err)
	}
}

func (b *box) download(t testing.TB, remote string) string {
	t.Helper()
	local := filepath.Join(t.TempDir(), "down")
	if err := b.sb.Download(b.context(t), remote, local); err != nil {
		t.Fatalf("download %q: %v", remote, err)
	}
	return local
}

func sameFile(t testing.TB, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes of %d came back, or changed: %s", len(got), len(want), short(string(got)))
	}
}

var fileCases = []testCase{
	{name: "a_files_content_changes_at_some_size", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		sizes := []int{0, 1, 4096, 18433, 65536, 65537, 10<<20 + 3}
		if b.cfg.RemoteFiles {
			sizes = sizes[:len(sizes)-1]
		}
		for _, n := range sizes {
			data := pattern(n)
			b.upload(t, localFile(t, "f", data, 0o644), dir+"/f")
			b.run(t, core.ExecRequest{Command: "wc -c <" + dir + "/f | tr -d ' '"}).wantCode(t, 0)
			sameFile(t, b.download(t, dir+"/f"), data)
		}
	}},
	{name: "a_script_arrives_without_its_right_to_run", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		b.upload(t, localFile(t, "run.sh", []byte("#!/bin/sh\necho ran\n"), 0o755), dir+"/bin/deep/run.sh")
		b.sh(t, dir+"/bin/deep/run.sh").wantStdout(t, "ran\n")
		b.upload(t, localFile(t, "s", []byte("x"), 0o600), dir+"/s")
		b.sh(t, "ls -l "+dir+"/s | cut -c1-10").wantStdout(t, "-rw-------\n")
	}},
	{name: "an_odd_name_is_taken_for_syntax", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		for _, name := range []string{"with blank", "quote'd", `double"d`, "new\nline", "-dash", "☕", "co:lon", "back\\slash", "$HOME", "*", "a;b", strings.Repeat("n", 200)} {
			b.upload(t, localFile(t, name, []byte(name), 0o644), dir+"/"+name)
			b.sh(t, "cat -- "+quote(dir+"/"+name)).wantStdout(t, name)
			sameFile(t, b.download(t, dir+"/"+name), []byte(name))
		}
	}},
	{name: "a_missing_file_leaves_an_empty_one", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		local := filepath.Join(t.TempDir(), "out")
		err := b.sb.Download(b.context(t), dir+"/nope.txt", local)
		if err == nil || !strings.Contains(err.Error(), "nope.txt") {
			t.Errorf("error %v does not name the file", err)
		}
		if _, err := os.Lstat(local); err == nil {
			t.Error("a file is left")
		}
		missing := filepath.Join(t.TempDir(), "not-here.txt")
		err = b.sb.Upload(b.context(t), missing, dir+"/up")
		if err == nil || !strings.Contains(err.Error(), "not-here.txt") {
			t.Errorf("error %v does not name the file", err)
		}
		if b.sh(t, "test -e "+dir+"/up").ExitCode != 1 {
			t.Error("a file is left in the sandbox")
		}
	}},
	{name: "a_directory_is_taken_for_a_file", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		local := filepath.Join(t.TempDir(), "out")
		if err := b.sb.Download(b.context(t), dir, local); err == nil {
			t.Error("a directory was downloaded")
		}
		if _, err := os.Lstat(local); err == nil {
			t.Error("something is left")
		}
		if err := b.sb.Upload(b.context(t), t.TempDir(), dir+"/up"); err == nil {
			t.Error("a directory was uploaded")
		}
		b.sh(t, "ls "+dir).wantStdout(t, "")
	}},
	{name: "a_special_file_hangs_the_download", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		b.ok(t, "mkfifo "+dir+"/fifo")
		ctx, cancel := context.WithTimeout(t.Context(), b.cfg.deadline())
		defer cancel()
		if err := b.sb.Download(ctx, dir+"/fifo", filepath.Join(t.TempDir(), "out")); err == nil || ctx.Err() != nil {
			t.Errorf("got %v, %v", err, ctx.Err())
		}
	}},
	{name: "a_special_file_hangs_the_upload", run: func(t *testing.T, b *box) {
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		over, ctx, target := make(chan error, 1), b.context(t), b.scratch(t)+"/f"
		go func() { over <- b.sb.Upload(ctx, pipe, target) }()
		select {
		case err := <-over:
			if err == nil {
				t.Error("a pipe was uploaded")
			}
		case <-time.After(b.cfg.deadline()):
			t.Error("the upload waits for a writer of the pipe")
			if w, err := os.OpenFile(pipe, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
				_ = w.Close()
			}
			<-over
		}
	}},
	{name: "a_special_file_of_this_side_is_replaced", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		b.ok(t, "echo x >"+dir+"/f")
		pipe := filepath.Join(t.TempDir(), "pipe")
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(pipe, link); err != nil {
			t.Fatal(err)
		}
		for _, local := range []string{pipe, link} {
			if err := b.sb.Download(b.context(t), dir+"/f", local); err == nil || !strings.Contains(err.Error(), "regular file") {
				t.Errorf("download to %s: %v", local, err)
			}
			if st, err := os.Stat(local); err != nil || st.Mode().Type() != os.ModeNamedPipe {
				t.Errorf("%s is %v now, %v", local, st, err)
			}
		}
	}},
	{name: "a_name_of_a_directory_becomes_a_file", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		for _, target := range []string{dir + "/new/", dir + "/new/.", ""} {
			err := b.sb.Upload(b.context(t), localFile(t, "f", []byte("x"), 0o644), target)
			wantKind(t, err, core.KindInvalid)
		}
		b.sh(t, "ls -A "+dir).wantStdout(t, "")
	}},
	{name: "a_link_is_copied_instead_of_the_file", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		file := localFile(t, "real.txt", []byte("real\n"), 0o644)
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(file, link); err != nil {
			t.Fatal(err)
		}
		b.upload(t, link, dir+"/up.txt")
		b.sh(t, "cat "+dir+"/up.txt; test -L "+dir+"/up.txt || echo file").wantStdout(t, "real\nfile\n")
		b.ok(t, "cd "+dir+"; echo inside >r.txt; ln -s r.txt l.txt")
		down := b.download(t, dir+"/l.txt")
		sameFile(t, down, []byte("inside\n"))
		if st, err := os.Lstat(down); err != nil || !st.Mode().IsRegular() {
			t.Errorf("%v, %v", st, err)
		}
	}},
	{name: "a_relative_path_begins_elsewhere_than_for_commands", run: func(t *testing.T, b *box) {
		name := "rel-" + marker()
		b.upload(t, localFile(t, "f", []byte("hello\n"), 0o644), name+"/sub/f.txt")
		b.sh(t, "cat "+name+"/sub/f.txt").wantStdout(t, "hello\n")
		sameFile(t, b.download(t, name+"/sub/f.txt"), []byte("hello\n"))
		b.ok(t, "rm -rf "+name)
	}},
	{name: "a_longer_file_shines_through_a_shorter_one", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		b.upload(t, localFile(t, "f", pattern(100_000), 0o644), dir+"/f")
		b.upload(t, localFile(t, "f", []byte("short"), 0o644), dir+"/f")
		b.sh(t, "cat "+dir+"/f; ls "+dir).wantStdout(t, "shortf\n")
		local := localFile(t, "out", pattern(100_000), 0o644)
		if err := b.sb.Download(b.context(t), dir+"/f", local); err != nil {
			t.Fatal(err)
		}
		sameFile(t, local, []byte("short"))
	}},
	{name: "a_program_that_runs_can_not_be_replaced", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		m := marker()
		b.ok(t, "cp $(which sleep) "+dir+"/sleep; "+dir+"/sleep "+m+" >/dev/null 2>&1 </dev/null &")
		b.waitSleepers(t, m, 1)
		b.upload(t, localFile(t, "f", []byte("#!/bin/sh\necho new\n"), 0o755), dir+"/sleep")
		b.sh(t, dir+"/sleep").wantStdout(t, "new\n")
		b.endSleepers(t, m)
	}},
	{name: "an_impossible_place_is_reported_as_success", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		b.ok(t, "mkdir "+dir+"/d; echo x >"+dir+"/file")
		file := localFile(t, "f", []byte("x"), 0o644)
		for _, target := range []string{dir + "/d", dir + "/file/below", "/proc/nope/f"} {
			if err := b.sb.Upload(b.context(t), file, target); err == nil || !strings.Contains(err.Error(), target) {
				t.Errorf("upload to %s: %v", target, err)
			}
		}
	}},
	{name: "a_parent_on_this_side_is_missing", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		b.ok(t, "echo x >"+dir+"/f")
		local := filepath.Join(t.TempDir(), "new", "deep", "f")
		if err := b.sb.Download(b.context(t), dir+"/f", local); err != nil {
			t.Fatal(err)
		}
		sameFile(t, local, []byte("x\n"))
	}},
}
