package execd

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// bootstrapped is a daemon that the image's bootstrap script has started.
type bootstrapped struct {
	daemon
	done chan error
	said string // the file of what the script and all that it started have printed
}

// printed is what was said until now.
func (b *bootstrapped) printed() string {
	b.t.Helper()
	p, err := os.ReadFile(b.said)
	require.NoError(b.t, err)
	return string(p)
}

// bootstrap runs the image's script with a main program.
func bootstrap(t *testing.T, argv ...string) *bootstrapped {
	t.Helper()
	return bootstrapWith(t, nil, argv...)
}

// bootstrapWith runs it with variables besides.
func bootstrapWith(t *testing.T, env []string, argv ...string) *bootstrapped {
	t.Helper()
	dir := t.TempDir()
	script, err := os.ReadFile("../../../tests/testenv/execd/bootstrap.sh")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bootstrap.sh"), script, 0o755))
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "execd")))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f, err := l.(*net.TCPListener).File()
	require.NoError(t, err)
	b := &bootstrapped{daemon: daemon{t: t, base: "http://" + l.Addr().String()}, done: make(chan error, 1), said: filepath.Join(dir, "said")}
	b.cmd = exec.Command("/bin/sh", append([]string{filepath.Join(dir, "bootstrap.sh")}, argv...)...)
	b.cmd.Env = append(append(plainEnv(t), asDaemon+"="+toStay), env...)
	b.cmd.ExtraFiles = []*os.File{f}
	// A file: the daemon, which holds it, lives until it is ended with its container.
	said, err := os.Create(b.said)
	require.NoError(t, err)
	defer said.Close()
	b.cmd.Stdout, b.cmd.Stderr = said, said
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, b.cmd.Start())
	require.NoError(t, l.Close())
	require.NoError(t, f.Close())
	go func() { b.done <- b.cmd.Wait() }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL)
	})
	return b
}

// code is that with which the script ends.
func (b *bootstrapped) code() int {
	b.t.Helper()
	select {
	case err := <-b.done:
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		require.NoError(b.t, err)
		return 0
	case <-time.After(30 * time.Second):
		require.Fail(b.t, "the script does not end")
		return -1
	}
}

func TestTheScriptEndsWithTheCodeOfTheMainProgram(t *testing.T) {
	t.Parallel()
	require.Equal(t, 7, bootstrap(t, "sh", "-c", "exit 7").code())
}

func TestTheMainProgramIsAskedToEndWithTheScript(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "mark")
	b := bootstrap(t, "sh", "-c", "trap 'exit 9' TERM; echo >"+mark+"; while :; do sleep 0.05; done")
	soon(t, func() bool { _, err := os.Stat(mark); return err == nil }, "the main program has not begun")
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 9, b.code())
}

func TestACommandOfTheEnvironmentTakesThePlaceOfTheMainProgram(t *testing.T) {
	t.Parallel()
	b := bootstrapWith(t, []string{"BOOTSTRAP_CMD=echo \"it's $((40 + 2))\"; exit 6"}, "sh", "-c", "echo the main program; exit 7")
	require.Equal(t, 6, b.code())
	require.Equal(t, "it's 42\n", b.printed())
}

func TestACommandOfTheEnvironmentNeedsNoMainProgram(t *testing.T) {
	t.Parallel()
	require.Equal(t, 5, bootstrapWith(t, []string{"BOOTSTRAP_CMD=exit 5"}).code())
}

func TestTheEnvironmentNamesTheShellOfItsCommand(t *testing.T) {
	t.Parallel()
	shell := filepath.Join(t.TempDir(), "shell")
	require.NoError(t, os.WriteFile(shell, []byte("#!/bin/sh\nprintf '<%s>' \"$@\"\nexit 8\n"), 0o755))
	b := bootstrapWith(t, []string{"BOOTSTRAP_SHELL=" + shell, "BOOTSTRAP_CMD=one two"}, "sh", "-c", "exit 7")
	require.Equal(t, 8, b.code())
	require.Equal(t, "<-c><one two>", b.printed())
}

func TestAShellWithoutACommandChangesNothing(t *testing.T) {
	t.Parallel()
	require.Equal(t, 7, bootstrapWith(t, []string{"BOOTSTRAP_SHELL=/nowhere", "BOOTSTRAP_CMD="}, "sh", "-c", "exit 7").code())
}

func TestTheMainProgramOfTheEnvironmentIsAskedToEndWithTheScript(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "mark")
	b := bootstrapWith(t, []string{"BOOTSTRAP_CMD=trap 'exit 9' TERM; echo >" + mark + "; while :; do sleep 0.05; done"})
	soon(t, func() bool { _, err := os.Stat(mark); return err == nil }, "the command has not begun")
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 9, b.code())
}

// preScript writes a script that is to be read first, and gives the variable that says so.
func preScript(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pre script.sh")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return "EXECD_BOOTSTRAP_PRE_SCRIPT=" + path
}

func TestWhatAScriptExportsFirstReachesTheMainProgramAndTheDaemon(t *testing.T) {
	t.Parallel()
	mark := filepath.Join(t.TempDir(), "mark")
	// It is strict, which is not the concern of what comes after it.
	b := bootstrapWith(t, []string{preScript(t, "set -eu\nexport GREETING=\"good day\"\n")}, "sh", "-c", `echo "$GREETING"; trap 'exit 4' TERM; echo >`+mark+`; while :; do sleep 0.05; done`)
	soon(t, func() bool { _, err := os.Stat(mark); return err == nil }, "the main program has not begun")
	require.Equal(t, "good day\n", b.printed())
	b.await()
	require.Equal(t, []string{"good day"}, texts(b.run("/command", shellCommand(`echo "$GREETING"`)), "stdout"))
	require.NoError(t, b.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 4, b.code())
}

func TestAScriptThatIsReadFirstCanSayWhatToRun(t *testing.T) {
	t.Parallel()
	b := bootstrapWith(t, []string{preScript(t, "BOOTSTRAP_CMD='exit 11'\n")}, "sh", "-c", "exit 7")
	require.Equal(t, 11, b.code())
}

func TestAScriptThatEndsWithAFailureIsFollowedByTheMainProgram(t *testing.T) {
	t.Parallel()
	require.Equal(t, 7, bootstrapWith(t, []string{preScript(t, "[ -f /nowhere ] && echo there\n")}, "sh", "-c", "exit 7").code())
}

func TestAScriptThatIsReadFirstCanEndTheSandbox(t *testing.T) {
	t.Parallel()
	b := bootstrapWith(t, []string{preScript(t, "exit 12\n")}, "sh", "-c", "echo begun")
	require.Equal(t, 12, b.code())
	require.Empty(t, b.printed())
}

func TestAMissingScriptIsNamedAndNothingRuns(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/nowhere/pre.sh", "pre.sh", t.TempDir()} {
		b := bootstrapWith(t, []string{"EXECD_BOOTSTRAP_PRE_SCRIPT=" + path}, "sh", "-c", "echo begun")
		require.Equal(t, 127, b.code())
		require.Contains(t, b.printed(), path)
		require.NotContains(t, b.printed(), "begun")
	}
}

// A shell starts what it runs in the background with interrupts ignored, and
// what ignores them hands that on.
func TestInterruptsWorkUnderTheScript(t *testing.T) {
	t.Parallel()
	b := bootstrap(t, "sleep", "1000")
	b.await()
	for _, mode := range []string{"1", "0"} {
		ws := b.attach(shellQuoteJSON("exec sleep 1234"), "pty="+mode)
		untilRuns(t, "sleep 1234")
		require.NoError(t, ws.WriteMessage(websocket.TextMessage, []byte(`{"type":"signal","signal":"SIGINT"}`)))
		require.Equal(t, `{"type":"exit","exit_code":-1}`, lastText(t, ws))
	}
	ws := b.attach(shellQuoteJSON("exec sleep 1234"), "pty=1")
	untilRuns(t, "sleep 1234")
	require.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte("\x00\x03")))
	require.Equal(t, `{"type":"exit","exit_code":-1}`, lastText(t, ws))
	all := b.run("/command", shellCommand("kill -INT $$; echo survived"))
	require.Empty(t, texts(all, "stdout"))
	require.Equal(t, "-1", end(t, all))
	all = b.run("/command", shellCommand("sh -c 'kill -QUIT $$; echo survived'"))
	require.Empty(t, texts(all, "stdout"))
}

// await waits until the daemon answers, whatever it says.
func (d *daemon) await() {
	d.t.Helper()
	res, err := http.Get(d.base + "/ping") // the listener has been there from the start
	require.NoError(d.t, err)
	require.NoError(d.t, res.Body.Close())
}

func shellQuoteJSON(command string) string { return fmt.Sprintf(`{"command":%q}`, command) }

// attach makes a terminal session and connects to it.
func (d *daemon) attach(create, query string) *websocket.Conn {
	d.t.Helper()
	status, body := d.ask(http.MethodPost, "/pty", create)
	require.Equal(d.t, http.StatusCreated, status, body)
	id := strings.Split(body, `"`)[3]
	return d.connect(id, query)
}

func (d *daemon) connect(id, query string) *websocket.Conn {
	d.t.Helper()
	ws, _, err := websocket.DefaultDialer.DialContext(d.t.Context(), "ws"+strings.TrimPrefix(d.base, "http")+"/pty/"+id+"/ws?"+query, nil)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// lastText reads a connection to its end and gives its last message of text.
func lastText(t *testing.T, ws *websocket.Conn) string {
	t.Helper()
	require.NoError(t, ws.SetReadDeadline(time.Now().Add(20*time.Second)))
	last := ""
	for {
		kind, p, err := ws.ReadMessage()
		var bye *websocket.CloseError
		if errors.As(err, &bye) {
			return strings.TrimSpace(last)
		}
		require.NoError(t, err)
		if kind == websocket.TextMessage {
			last = string(p)
		}
	}
}

func TestAnAttachToAnEndedSessionTellsItsEndAgainAndStartsNothing(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	mark := filepath.Join(t.TempDir(), "mark")
	status, body := d.ask(http.MethodPost, "/pty", shellQuoteJSON("echo run >>"+mark+"; echo out; exit 5"))
	require.Equal(t, http.StatusCreated, status)
	id := strings.Split(body, `"`)[3]
	for range 3 {
		require.Equal(t, `{"type":"exit","exit_code":5}`, lastText(t, d.connect(id, "pty=0&takeover=1")))
	}
	p, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.Equal(t, "run\n", string(p))
}

func TestDeletingASessionEndsTheJobsOfItsShell(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	status, body := d.ask(http.MethodPost, "/pty", "{}")
	require.Equal(t, http.StatusCreated, status)
	id := strings.Split(body, `"`)[3]
	ws := d.connect(id, "pty=1")
	mark := filepath.Join(t.TempDir(), "mark")
	require.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte("\x00sh -c 'trap \"\" HUP TERM; echo $$ >"+mark+"; sleep 1000'\n")))
	var child string
	soon(t, func() bool {
		p, err := os.ReadFile(mark)
		child = strings.TrimSpace(string(p))
		return err == nil && child != ""
	}, "the job has not begun")
	status, _ = d.ask(http.MethodDelete, "/pty/"+id, "")
	require.Equal(t, http.StatusOK, status)
	soon(t, func() bool { _, err := os.Stat("/proc/" + child); return os.IsNotExist(err) }, "the job lives")
}
