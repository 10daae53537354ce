package execd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
)

// asDaemon makes the test program the daemon, behind the listener that is its
// descriptor 3. It ends with its standard input, unless it is to stay.
const (
	asDaemon = "NGS_TEST_EXECD"
	toStay   = "stay"
)

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		os.Exit(daemonMain())
	}
	goleak.VerifyTestMain(m)
}

// daemonMain is a whole daemon, which says what it has left over.
func daemonMain() int {
	process.Calm()
	stays := os.Getenv(asDaemon) == toStay
	_ = os.Unsetenv(asDaemon)
	f := os.NewFile(3, "listener")
	l, err := net.FileListener(f)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	_ = f.Close()
	if !stays {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		}()
	}
	cfg, err := ParseConfig(os.Args[1:], os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	before := descriptors()
	code, err := serve(cfg, l)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return code
	}
	// A connection that is cut off may have its last half second.
	find := func() error {
		return goleak.Find(goleak.IgnoreAnyFunction("github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process.(*Reaper).loop"))
	}
	err = find()
	for range 5 {
		if err != nil {
			err = find()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the daemon has left goroutines:", err)
		return 3
	}
	// The listener was there before, and what the runtime made for itself came in between.
	if after := descriptors(); len(after) > len(before) {
		fmt.Fprintln(os.Stderr, "the daemon has left descriptors: before", before, "after", after)
		return 4
	}
	return 0
}

// descriptors lists what is open, without what the runtime keeps for itself.
func descriptors() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && !strings.HasPrefix(to, "anon_inode:") && !strings.Contains(to, "/fd") {
			all = append(all, e.Name()+"="+to)
		}
	}
	return all
}

// daemon is one that runs in a process of its own.
type daemon struct {
	t    *testing.T
	base string
	cmd  *exec.Cmd
	said *strings.Builder
}

// startDaemon runs a daemon; wrap, if any, is the program that runs it. At the
// end of the test it must have left nothing over.
func startDaemon(t *testing.T, env []string, wrap ...string) *daemon {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	argv := append(wrap, self)
	if len(wrap) > 0 && wrap[len(wrap)-1] == "--" {
		argv = append(wrap[:len(wrap)-1:len(wrap)-1], "/root/execd")
	}
	d := &daemon{t: t, base: "http://" + l.Addr().String(), said: &strings.Builder{}}
	d.cmd = exec.Command(argv[0], argv[1:]...)
	d.cmd.Env = append([]string{asDaemon + "=1"}, env...)
	d.cmd.ExtraFiles = []*os.File{f}
	d.cmd.Stderr, d.cmd.Stdout = d.said, d.said
	stop, err := d.cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, d.cmd.Start())
	require.NoError(t, l.Close())
	require.NoError(t, f.Close())
	d.await()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		require.NoError(t, stop.Close())
		kill := time.AfterFunc(time.Minute, func() { _ = d.cmd.Process.Kill() })
		defer kill.Stop()
		require.NoError(t, d.cmd.Wait(), "%s", d.said)
	})
	return d
}

// plainEnv is what a daemon gets that is to behave as everywhere.
func plainEnv(t *testing.T) []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
}

// told is one event of a stream.
type told struct {
	Type          string
	Text          string
	Code, Message string // of an error without a type
	Error         struct {
		EName, EValue string
		Traceback     []string
	}
}

// do sends a request and gives the answer, whose body is the caller's to close.
func (d *daemon) do(method, path, body string, headers ...string) *http.Response {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), method, d.base+path, strings.NewReader(body))
	require.NoError(d.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	require.NoError(d.t, err)
	return res
}

// ask sends a request and gives the whole answer.
func (d *daemon) ask(method, path, body string, headers ...string) (int, string) {
	d.t.Helper()
	res := d.do(method, path, body, headers...)
	defer res.Body.Close()
	p, err := io.ReadAll(res.Body)
	require.NoError(d.t, err)
	return res.StatusCode, string(p)
}

// run runs a command, given as a request's body, and gives what was told.
func (d *daemon) run(path string, body any) []told {
	d.t.Helper()
	p, err := json.Marshal(body)
	require.NoError(d.t, err)
	res := d.do(http.MethodPost, path, string(p))
	defer res.Body.Close()
	require.Equal(d.t, http.StatusOK, res.StatusCode)
	var all []told
	for e, err := range events(res.Body) {
		require.NoError(d.t, err)
		all = append(all, e)
	}
	return all
}

// events reads a stream.
func events(r io.Reader) func(func(told, error) bool) {
	return func(yield func(told, error) bool) {
		for dec := json.NewDecoder(bufio.NewReader(r)); ; {
			var e told
			err := dec.Decode(&e)
			if err == io.EOF || !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// texts are those of one kind of event.
func texts(all []told, kind string) []string {
	var out []string
	for _, e := range all {
		if e.Type == kind {
			out = append(out, e.Text)
		}
	}
	return out
}

// end is how a stream ended: the code of the error, or "0".
func end(t *testing.T, all []told) string {
	t.Helper()
	require.NotEmpty(t, all)
	for i := len(all) - 1; i >= 0; i-- {
		switch e := all[i]; e.Type {
		case "error":
			return e.Error.EValue
		case "execution_complete":
			return "0"
		case "":
			return e.Code + ": " + e.Message
		}
	}
	require.Fail(t, "the stream has no final event", "%+v", all)
	return ""
}

// contained runs the daemon in a file system of its own, with the users that the recordings know.
func contained(t *testing.T) []string {
	t.Helper()
	bwrap, err := exec.LookPath("bwrap")
	require.NoError(t, err, "bubblewrap is needed: ./build.sh setup installs it")
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	passwd, group := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	require.NoError(t, os.WriteFile(passwd, []byte("root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n"), 0o644))
	require.NoError(t, os.WriteFile(group, []byte("root:x:0:\nagent:x:1000:\n"), 0o644))
	return []string{bwrap, "--bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/root", "--ro-bind", self, "/root/execd",
		"--ro-bind", passwd, "/etc/passwd", "--ro-bind", group, "/etc/group", "--unshare-pid", "--as-pid-1", "--die-with-parent", "--cap-add", "ALL",
		"--chdir", "/tmp", "--"}
}
