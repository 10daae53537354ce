package execd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// session opens one.
func (d *daemon) session(cwd string) string {
	d.t.Helper()
	p, err := json.Marshal(map[string]string{"cwd": cwd})
	require.NoError(d.t, err)
	status, body := d.ask(http.MethodPost, "/session", string(p))
	require.Equal(d.t, http.StatusOK, status, body)
	var s struct {
		ID string `json:"session_id"`
	}
	require.NoError(d.t, json.Unmarshal([]byte(body), &s))
	return s.ID
}

// in runs a command in a session.
func (d *daemon) in(id, command string) []told {
	d.t.Helper()
	return d.run("/session/"+id+"/run", shellCommand(command))
}

func TestASessionCarriesVariablesAndDirectoryWhateverIsInThem(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	dir := filepath.Join(t.TempDir(), "it's a \"dir\"\n`x`")
	id := d.session(dir)
	require.Equal(t, "0", end(t, d.in(id, `export V=$'two\nlines "and" \'quotes\' $HOME'; export N=5; mkdir -p sub; cd sub`)))
	all := d.in(id, `printf '%s' "$V" | od -An -c | tr -d ' \n'; echo; echo "$N"; pwd | tail -n 1`)
	require.Equal(t, []string{`two\nlines"and"'quotes'$HOME`, "5", "`x`/sub"}, texts(all, "stdout"))
	all = d.in(id, `unset V; echo "[$V]"; cd ..`)
	require.Equal(t, []string{"[]"}, texts(all, "stdout"))
	all = d.in(id, `echo "[$V]"; test "$PWD" = `+"'"+strings.ReplaceAll(dir, "'", `'\''`)+"'")
	require.Equal(t, []string{"[]"}, texts(all, "stdout"))
	require.Equal(t, "0", end(t, all))
}

func TestASessionSurvivesCommandsThatCanNotBeRead(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	id := d.session("")
	d.in(id, "export KEEP=1")
	for _, bad := range []string{"echo 'open", "if true", "cat <<EOF\nno end", "exit 4", "set -e; false", "exec 3>&- 4>&- 10>&- 11>&-; export KEEP=2; kill $$", "echo \\"} {
		d.in(id, bad)
		all := d.in(id, "echo $KEEP")
		require.Equal(t, []string{"1"}, texts(all, "stdout"), bad)
	}
}

func TestASessionsRunsFollowOneAnother(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	id := d.session("")
	d.in(id, "export N=0")
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { d.in(id, "export N=$((N+1))") })
	}
	wg.Wait()
	require.Equal(t, []string{"5"}, texts(d.in(id, "echo $N"), "stdout"))
}

func TestASessionsTimeoutEndsTheGroup(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	id := d.session("")
	mark := filepath.Join(t.TempDir(), "mark")
	all := d.run("/session/"+id+"/run", map[string]any{"command": "sh -c 'echo $$ >" + mark + "; exec sleep 1000' | cat", "timeout": 700})
	require.Equal(t, codeRuntime+": error running in session. timeout after 700ms", end(t, all))
	p, err := os.ReadFile(mark)
	require.NoError(t, err)
	soon(t, func() bool { _, err := os.Stat("/proc/" + strings.TrimSpace(string(p))); return os.IsNotExist(err) }, "the child lives")
	require.Equal(t, []string{"on"}, texts(d.in(id, "echo on"), "stdout"))
}

func TestASessionsVariablesAreInNoCommandLine(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	id := d.session("")
	d.in(id, "export SECRET=topsecret-7261")
	all := d.in(id, `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -c '[t]opsecret-7261' ; ls /proc/self/fd | wc -w`)
	out := texts(all, "stdout")
	require.Equal(t, "0", out[0], "%v", out)
	// 0 to 2, the folder that ls reads, and the one that takes the state.
	require.Equal(t, "5", out[1], "descriptors reach the command: %v", out)
}

func TestServicesOfASessionOutliveIt(t *testing.T) {
	t.Parallel()
	d := startDaemon(t, plainEnv(t))
	id := d.session("")
	mark := filepath.Join(t.TempDir(), "mark")
	all := d.in(id, fmt.Sprintf("nohup sh -c 'sleep 0.3; echo alive >%s' >/dev/null 2>&1 & echo started", mark))
	require.Equal(t, []string{"started"}, texts(all, "stdout"))
	status, _ := d.ask(http.MethodDelete, "/session/"+id, "")
	require.Equal(t, http.StatusOK, status)
	soon(t, func() bool { p, err := os.ReadFile(mark); return err == nil && string(p) == "alive\n" }, "the service has been ended")
}
