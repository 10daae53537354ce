package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// String shows a result in a message.
func (r result) String() string {
	return fmt.Sprintf("exit code %d, error type %q (%s), stdout %s, stderr %s", r.ExitCode, r.ErrorType, r.Reason, short(r.stdout), short(r.stderr))
}

func short(s string) string {
	if len(s) > 300 {
		return fmt.Sprintf("%q... (%d bytes)", s[:300], len(s))
	}
	return strconv.Quote(s)
}

// quote makes one word of a POSIX shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// marker gives a number to sleep for that tells a process from all others.
func marker() string { return strconv.FormatInt(markers.Add(1), 10) }

// sleepers counts the processes in the sandbox that sleep for the marker. The
// shell drops the zero bytes between arguments, so what a shell was told to run
// (with a blank) looks different from what runs.
func (b *box) sleepers(t testing.TB, marker string) int {
	t.Helper()
	out := b.ok(t, `n=0; for p in /proc/[0-9]*; do l=; IFS= read -r l <$p/cmdline; case $l in *sleep`+marker+`) n=$((n+1));; esac; done 2>/dev/null; echo $n`)
	n, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		t.Fatalf("count processes: %v", err)
	}
	return n
}

// waitSleepers waits until as many processes sleep for the marker.
func (b *box) waitSleepers(t testing.TB, marker string, want int) {
	t.Helper()
	b.wait(t, fmt.Sprintf("%d processes sleep for %s", want, marker), func() bool { return b.sleepers(t, marker) == want })
}

// wait polls for a state that nothing announces.
func (b *box) wait(t testing.TB, what string, reached func() bool) {
	t.Helper()
	end := time.Now().Add(b.cfg.deadline())
	for !reached() {
		if time.Now().After(end) {
			t.Fatalf("it did not happen that %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// hostProcesses lists this machine's processes whose command line or
// environment holds the text.
func hostProcesses(file, text string) []int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	var found []int
	for _, d := range dirs {
		raw, err := os.ReadFile(filepath.Join(d, file))
		pid, _ := strconv.Atoi(filepath.Base(d))
		if err == nil && pid != os.Getpid() && strings.Contains(string(raw), text) {
			found = append(found, pid)
		}
	}
	return found
}

// localFile writes a file on this machine.
func localFile(t testing.TB, name string, data []byte, mode os.FileMode) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, data, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p, mode); err != nil {
		t.Fatal(err)
	}
	return p
}

// scratch makes an empty directory in the sandbox.
func (b *box) scratch(t testing.TB) string {
	t.Helper()
	dir := "/tmp/suite-" + marker()
	b.ok(t, "mkdir "+dir)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), b.cfg.deadline())
		defer cancel()
		_, _ = b.try(ctx, core.ExecRequest{Command: "rm -rf " + dir})
	})
	return dir
}

// sinkFunc is a Sink from a function.
type sinkFunc func(s core.Stream, p []byte) error

func (f sinkFunc) Write(s core.Stream, p []byte) error { return f(s, p) }

// pattern is data in which a lost, doubled or moved piece shows.
func pattern(n int) []byte {
	p := make([]byte, n)
	x := uint32(2463534242)
	for i := range p {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		p[i] = byte(x)
	}
	return p
}

func wantKind(t testing.TB, err error, kind core.Kind) {
	t.Helper()
	if err == nil || core.KindOf(err) != kind {
		t.Fatalf("got error %v of kind %q, want kind %q", err, core.KindOf(err), kind)
	}
}
