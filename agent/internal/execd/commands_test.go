package execd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// soon waits for something that is to become true.
func soon(t *testing.T, is func() bool, what string, args ...any) {
	t.Helper()
	require.Eventually(t, is, 20*time.Second, 5*time.Millisecond, append([]any{what}, args...)...)
}

func shellCommand(text string) map[string]any { return map[string]any{"command": text} }

// state asks for a command's status.
func (d *daemon) state(id string) commandState {
	d.t.Helper()
	status, body := d.ask(http.MethodGet, "/command/status/"+id, "")
	require.Equal(d.t, http.StatusOK, status, body)
	var st commandState
	require.NoError(d.t, json.Unmarshal([]byte(body), &st))
	return st
}

// pid of the daemon.
func (d *daemon) pid() int { return d.cmd.Process.Pid }

func TestNothingOfATailIsLost(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	for i := range 20 {
		n := 1 + i*700
		all := d.run("/command", shellCommand(fmt.Sprintf("seq 1 %d; printf last >&2", n)))
		out := texts(all, "stdout")
		require.Len(t, out, n)
		require.Equal(t, strconv.Itoa(n), out[n-1])
		require.Equal(t, []string{"last"}, texts(all, "stderr"))
		require.Equal(t, "0", end(t, all))
	}
}

func TestAStreamEndsWithItsFinalEventUnlessAPauseIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		env         string
		least, most time.Duration
	}{{"", 0, 900 * time.Millisecond}, {varGrace + "=1s", time.Second, time.Minute}} {
		env := plainEnv(t)
		if c.env != "" {
			env = append(env, c.env)
		}
		d := startDaemon(t, env)
		began := time.Now()
		d.run("/command", shellCommand("true"))
		took := time.Since(began)
		assert.GreaterOrEqual(t, took, c.least)
		assert.Less(t, took, c.most)
	}
}

func TestASilentCommandIsToldWhileItRuns(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	gate := filepath.Join(t.TempDir(), "gate")
	require.NoError(t, exec.Command("mkfifo", gate).Run())
	// It ends when somebody has opened the other side, which happens here once its beginning has come.
	res := d.do(http.MethodPost, "/command", fmt.Sprintf(`{"command":"read -r x <'%s'; exit $x"}`, gate))
	defer res.Body.Close()
	require.Equal(t, []string{"chunked"}, res.TransferEncoding)
	var all []told
	for e, err := range events(res.Body) {
		require.NoError(t, err)
		if all = append(all, e); len(all) == 1 {
			require.Equal(t, "init", e.Type)
			require.True(t, d.state(e.Text).Running)
			require.NoError(t, os.WriteFile(gate, []byte("3\n"), 0))
		}
	}
	require.Equal(t, "3", end(t, all))
}

func TestAShortCommandIsToldInTheFormOfALongOne(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	res := d.do(http.MethodPost, "/command", `{"command":"true"}`)
	defer res.Body.Close()
	require.Equal(t, []string{"chunked"}, res.TransferEncoding)
	var kinds []string
	for e, err := range events(res.Body) {
		require.NoError(t, err)
		kinds = append(kinds, e.Type)
	}
	require.Equal(t, []string{"init", "ping", "execution_complete"}, kinds)
}

func TestWhatOutlivesItsCommandCanGoOnWriting(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	mark := filepath.Join(t.TempDir(), "mark")
	// More than pipes hold, long after the command has ended.
	all := d.run("/command", shellCommand(fmt.Sprintf(`(sleep 0.5; trap 'echo pipe >%[1]s; exit' PIPE; head -c 300000 /dev/zero && echo whole >%[1]s) & echo started`, mark)))
	require.Equal(t, []string{"started"}, texts(all, "stdout"))
	require.Equal(t, "0", end(t, all))
	soon(t, func() bool {
		p, err := os.ReadFile(mark)
		return err == nil && string(p) != ""
	}, "the process left behind has not ended")
	p, err := os.ReadFile(mark)
	require.NoError(t, err)
	require.Equal(t, "whole\n", string(p))
}

func TestACommandGoesOnWithoutItsClientHoweverMuchItPrints(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	res := d.do(http.MethodPost, "/command", `{"command":"head -c 20000000 /dev/zero | tr '\\0' 'x' | fold; exit 3"}`)
	var id string
	for e, err := range events(res.Body) {
		require.NoError(t, err)
		id = e.Text
		break
	}
	require.NoError(t, res.Body.Close())
	soon(t, func() bool { return !d.state(id).Running }, "the command has not ended")
	require.Equal(t, 3, *d.state(id).ExitCode)
}

func TestArgvIsExecutedWithoutAShell(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	all := d.run("/command", map[string]any{"argv": []string{"printf", "%s|", "a b", "$HOME", "*"}})
	require.Equal(t, []string{"a b|$HOME|*|"}, texts(all, "stdout"))
	all = d.run("/command", map[string]any{"argv": []string{"no-such-program"}})
	require.Contains(t, end(t, all), "no-such-program")
	id := all[0].Text
	require.Equal(t, notStarted, *d.state(id).ExitCode)
	status, body := d.ask(http.MethodPost, "/command", `{"command":"true","argv":["true"]}`)
	require.Equal(t, http.StatusBadRequest, status, body)
}

func TestACommandsUserBecomesTheOwnerOfItsOutputAndOfNoDevice(t *testing.T) {
	t.Parallel()
	const uid = 47110
	owner := func() uint32 {
		st, err := os.Stat(os.DevNull)
		require.NoError(t, err)
		return st.Sys().(*syscall.Stat_t).Uid
	}
	before := owner()
	t.Cleanup(func() {
		if owner() == uid {
			assert.NoError(t, os.Chown(os.DevNull, int(before), 0)) // it is the machine's
		}
	})
	d := startDaemon(t, plainEnv(t))
	all := d.run("/command", map[string]any{"command": "id -u; echo reopened >/dev/stdout", "cwd": "/", "uid": uid})
	require.Equal(t, []string{strconv.Itoa(uid), "reopened"}, texts(all, "stdout"))
	require.Equal(t, before, owner())
}

func TestALogCanBeReadWhileItGrows(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	gate := filepath.Join(t.TempDir(), "gate")
	all := d.run("/command", map[string]any{"command": "echo one; echo two >&2; until [ -e " + gate + " ]; do sleep 0.02; done; echo three; sleep 0.3 & sleep 0.1", "background": true})
	id := all[0].Text
	read := func(cursor int) (string, string) {
		res := d.do(http.MethodGet, fmt.Sprintf("/command/%s/logs?cursor=%d", id, cursor), "")
		defer res.Body.Close()
		p := make([]byte, 100)
		n, _ := res.Body.Read(p)
		return string(p[:n]), res.Header.Get(cursorHeader)
	}
	soon(t, func() bool { p, _ := read(0); return p == "one\ntwo\n" }, "the log does not grow")
	require.True(t, d.state(id).Running)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	soon(t, func() bool { return !d.state(id).Running }, "the command has not ended")
	p, cursor := read(8)
	require.Equal(t, "three\n", p)
	require.Equal(t, "14", cursor)
}

func TestALogDoesNotDependOnTheTemporaryFolder(t *testing.T) {
	t.Parallel()
	env := plainEnv(t)
	d := startDaemon(t, env)
	tmp := strings.TrimPrefix(env[2], "TMPDIR=")
	all := d.run("/command", map[string]any{"command": "echo before; rm -rf " + tmp + "/* " + tmp + "/.[!.]*; echo after", "background": true})
	soon(t, func() bool { return !d.state(all[0].Text).Running }, "the command has not ended")
	_, log := d.ask(http.MethodGet, "/command/"+all[0].Text+"/logs", "")
	require.Equal(t, "before\nafter\n", log)
}

func TestNothingIsLeftInTheTemporaryFolder(t *testing.T) {
	t.Parallel()
	env := plainEnv(t)
	d := startDaemon(t, env)
	tmp := strings.TrimPrefix(env[2], "TMPDIR=")
	d.run("/command", shellCommand("echo x"))
	d.run("/command", map[string]any{"command": "echo x", "background": true})
	d.run("/command", shellCommand("echo "+strings.Repeat("x", 200000)))
	_, body := d.ask(http.MethodPost, "/session", "")
	var s struct {
		ID string `json:"session_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &s))
	d.run("/session/"+s.ID+"/run", shellCommand("export SECRET=1"))
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestDescriptorsAndZombiesDoNotPileUp(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	open := func() int {
		found, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.pid()))
		require.NoError(t, err)
		return len(found)
	}
	round := func() {
		d.run("/command", shellCommand("(sleep 0.01 &); echo x | cat; false"))
		_, body := d.ask(http.MethodPost, "/session", "")
		var s struct {
			ID string `json:"session_id"`
		}
		require.NoError(t, json.Unmarshal([]byte(body), &s))
		d.run("/session/"+s.ID+"/run", shellCommand("echo x"))
		d.ask(http.MethodDelete, "/session/"+s.ID, "")
		// A process that was left behind and holds the output.
		d.run("/command", shellCommand("sleep 0.2 & echo x"))
	}
	round()
	var before int
	soon(t, func() bool { n := open(); settled := n == before; before = n; return settled }, "descriptors come and go")
	for range 30 {
		round()
	}
	soon(t, func() bool { return open() <= before }, "there were %d descriptors", before)
	soon(t, func() bool {
		found, err := filepath.Glob("/proc/[0-9]*/stat")
		require.NoError(t, err)
		for _, name := range found {
			p, err := os.ReadFile(name)
			if err != nil {
				continue
			}
			f := strings.Fields(string(p)[strings.LastIndexByte(string(p), ')')+1:])
			if f[1] == strconv.Itoa(d.pid()) && f[0] == "Z" {
				return false
			}
		}
		return true
	}, "there are zombies")
}

func TestAnInterruptEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	mark := filepath.Join(t.TempDir(), "mark")
	all := d.run("/command", map[string]any{"command": "(trap '' TERM; echo $BASHPID >" + mark + "; exec sleep 1000) & exec sleep 1000", "background": true})
	var child string
	soon(t, func() bool {
		p, err := os.ReadFile(mark)
		child = strings.TrimSpace(string(p))
		return err == nil && child != ""
	}, "the child has not begun")
	status, body := d.ask(http.MethodDelete, "/command?id="+all[0].Text, "")
	require.Equal(t, http.StatusOK, status, body)
	require.Equal(t, -1, *d.state(all[0].Text).ExitCode)
	soon(t, func() bool { _, err := os.Stat("/proc/" + child); return os.IsNotExist(err) }, "the child lives")
}

func TestTheFileOfVariablesIsReadEachTime(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "env")
	d := startDaemon(t, append(plainEnv(t), varEnvs+"="+file, "BASE=b"))
	show := shellCommand("echo $A-$B-$BASE")
	require.Equal(t, []string{"--b"}, texts(d.run("/command", show), "stdout"))
	require.NoError(t, os.WriteFile(file, []byte("# a comment\nA=1\nB=$A$BASE\nnonsense\n"), 0o600))
	require.Equal(t, []string{"1-1b-b"}, texts(d.run("/command", show), "stdout"))
	show["envs"] = map[string]string{"B": "call"}
	require.Equal(t, []string{"1-call-b"}, texts(d.run("/command", show), "stdout"))
}

func TestCommandsDoNotSeeTheToken(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, append(plainEnv(t), varToken+"=sekret"))
	status, _ := d.ask(http.MethodPost, "/command", `{"command":"true"}`)
	require.Equal(t, http.StatusUnauthorized, status)
	_, body := d.ask(http.MethodPost, "/command", `{"command":"env; echo there"}`, tokenHeader, "sekret")
	require.Contains(t, body, "there")
	require.NotContains(t, body, "sekret")
}

func TestOldRecordsMakeRoom(t *testing.T) {
	t.Parallel()
	cs := commands{byID: map[string]*command{}}
	defer cs.forget()
	add := func(n int, text string, since time.Duration) *command {
		var last *command
		for range n {
			log, err := memory("x")
			require.NoError(t, err)
			last = &command{id: newID(), text: text, log: log, finished: time.Now().Add(-since)}
			cs.add(last)
		}
		return last
	}
	running := &command{id: "running"}
	cs.add(running)
	first := add(1, "", 2*young)
	add(keepRecords, "", 2*young)
	last := add(pruneEvery, "", 0)
	require.LessOrEqual(t, len(cs.order), keepRecords+pruneEvery+1)
	require.Nil(t, cs.find(first.id), "there are too many")
	_, err := first.log.Stat()
	require.ErrorIs(t, err, os.ErrClosed)
	require.NotNil(t, cs.find(last.id))
	require.Same(t, running, cs.find("running"))

	last.finished = time.Now().Add(-2 * keepFor)
	add(pruneEvery, "", 0)
	require.Nil(t, cs.find(last.id), "it is too old")

	long := add(1, strings.Repeat("x", keepText/2), 2*young)
	recent := add(1, strings.Repeat("x", keepText), 0)
	add(pruneEvery, "", 0)
	require.Nil(t, cs.find(long.id), "their text is too long")
	require.NotNil(t, cs.find(recent.id), "its client may ask for it yet")
}

func TestAnImageWithoutBashRunsCommandsAndSaysWhatSessionsNeed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"sh", "wc"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	d := startDaemon(t, []string{"PATH=" + dir, "TMPDIR=" + t.TempDir()})
	require.Equal(t, []string{"sh"}, texts(d.run("/command", shellCommand("echo $0")), "stdout"))
	long := strings.Repeat("x", 300000)
	require.Equal(t, []string{"300001"}, texts(d.run("/command", shellCommand("wc -c <<EOF\n"+long+"\nEOF\n")), "stdout"))
	require.Contains(t, end(t, d.in(d.session(""), "true")), "bash is not installed")
	require.Contains(t, lastText(t, d.attach("{}", "pty=1")), "bash is not installed")
}
