package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// home gives the test folders of its own for state and workspaces.
func home(t *testing.T) (state, work string) {
	t.Helper()
	state, work = t.TempDir(), t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	return state, work
}

func newProvider(t *testing.T, config map[string]any) *provider {
	t.Helper()
	raw, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(raw)
	if err != nil {
		t.Fatal(err)
	}
	return p.(*provider)
}

func create(t *testing.T, p *provider, spec core.Spec) *instance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, err := p.Create(ctx, spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() { destroy(t, in) })
	return in.(*instance)
}

func destroy(t *testing.T, in core.Instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := in.Destroy(ctx); err != nil {
		t.Errorf("destroy: %v", err)
	}
	in.Detach()
}

// run gives the exit code and all that a command printed.
func run(t *testing.T, in core.Instance, command string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := core.NewCollector(0)
	defer c.Close()
	res, err := in.Exec(ctx, core.ExecRequest{Command: command, Timeout: 30 * time.Second}, c)
	if err != nil || res.ErrorType != "" {
		t.Fatalf("%s: %+v, %v", command, res, err)
	}
	return res.ExitCode, c.Output(core.Stdout).String() + c.Output(core.Stderr).String()
}

// logs catches what is logged.
func logs(t *testing.T) func() string {
	t.Helper()
	var mu sync.Mutex
	var buf bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return buf.Write(p)
	}), nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return buf.String()
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestIsolationClosesWhatItShould(t *testing.T) {
	state, work := home(t)
	in := create(t, newProvider(t, map[string]any{"isolation": "bwrap", "workspace_root": work}), core.Spec{})
	// A name that nothing else on this machine has.
	mine := fmt.Sprintf("ngs-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	for _, c := range []struct{ command, why string }{
		{"! touch /etc/" + mine + " && ! touch /usr/" + mine + " && ! touch /root/" + mine, "the machine's files can be written to"},
		{"! mount -o remount,rw / && ! mount -o remount,bind,rw /usr", "the read-only mounts can be undone"},
		{"! unshare -Ur mount -o remount,bind,rw /usr", "the read-only mounts can be undone from another namespace"},
		{"! ls /run/docker.sock /var/run/docker.sock /run/containerd /run/dbus", "a daemon's socket can be reached"},
		{"[ -z \"$(ls -A " + state + "/nemo-gym-sandbox)\" ]", "other sandboxes' state can be read"},
		{"[ $(ls -d /proc/[0-9]* | wc -l) -lt 10 ] && ! kill -0 " + fmt.Sprint(os.Getpid()), "the machine's processes are visible"},
		{"for d in . /tmp /var/tmp /run /dev/shm; do touch $d/" + mine + " || exit 1; done; echo x >/dev/null", "nothing can be written to"},
		{"[ $(stat -c %a /tmp) = 1777 ]", "/tmp is not open to all"},
		{"[ \"$(pwd)\" = " + in.rec.Workspace + " ]", "the workspace has another name inside"},
		{"ls /usr/bin/env /etc/passwd", "programs and files of the machine are missing"},
		{"grep -q 'CapBnd:.0000000000000000' /proc/self/status && grep -q 'NoNewPrivs:.1' /proc/self/status", "capabilities are left"},
		{"rm -rf /tmp/" + mine + "* && [ -S /run/ngs/agent.sock ]", "clearing /tmp takes the agent's socket away"},
	} {
		if code, out := run(t, in, c.command); code != 0 {
			t.Errorf("%s: %s: %s", c.why, c.command, out)
		}
	}
	if _, err := os.Stat(filepath.Join(in.rec.Workspace, mine)); err != nil {
		t.Errorf("the workspace is not the one on this machine: %v", err)
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/run", "/dev/shm"} {
		if _, err := os.Lstat(filepath.Join(dir, mine)); err == nil {
			t.Errorf("%s is this machine's", dir)
		}
	}
}

func TestAWorkdirInsideHiddenPlacesIsThere(t *testing.T) {
	home(t)
	p := newProvider(t, map[string]any{"isolation": "bwrap"})
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/real", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir+"/real", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, workdir := range []string{dir + "/new/deep", dir + "/link", dir + "/link/sub", dir} {
		in := create(t, p, core.Spec{Workdir: workdir})
		if code, out := run(t, in, "touch made-inside && pwd"); code != 0 || strings.TrimSpace(out) != workdir {
			t.Errorf("%s: %d %s", workdir, code, out)
		}
		destroy(t, in)
		if _, err := os.Stat(workdir + "/made-inside"); err != nil {
			t.Errorf("a workdir of the spec is not kept: %v", err)
		}
	}
	st, err := os.Stat(dir + "/new/deep")
	if err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
}

func TestAWorkdirThatWouldOpenTheMachineIsRefused(t *testing.T) {
	home(t)
	p := newProvider(t, map[string]any{"isolation": "bwrap"})
	link := t.TempDir() + "/root"
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"/", "//", "/run", "/proc", "/dev", "/sys", link} {
		if _, err := p.Create(t.Context(), core.Spec{Workdir: dir}); core.KindOf(err) != core.KindInvalid {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestTheNetworkIsSharedOrNot(t *testing.T) {
	home(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	defer func() { _ = server.Close(); <-served }()
	port := l.Addr().(*net.TCPAddr).Port
	dial := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d", port)

	in := create(t, newProvider(t, map[string]any{"isolation": "bwrap"}), core.Spec{})
	if code, out := run(t, in, dial); code != 0 {
		t.Errorf("shared: %s", out)
	}
	ep, err := in.Endpoint(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(ep.URL)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if string(body) != "hello" {
		t.Errorf("the endpoint answers %q", body)
	}
	if _, err := in.Endpoint(t.Context(), 0); core.KindOf(err) != core.KindInvalid {
		t.Errorf("port 0: %v", err)
	}

	alone := create(t, newProvider(t, map[string]any{"isolation": "bwrap", "network": "none"}), core.Spec{})
	if code, _ := run(t, alone, dial); code == 0 {
		t.Error("none: this machine's port can be reached")
	}
	if _, err := alone.Endpoint(t.Context(), port); core.KindOf(err) != core.KindNotSupported {
		t.Errorf("none: %v", err)
	}
}

func TestMissingBubblewrapIsLoudOrAnError(t *testing.T) {
	home(t)
	forget := func() {
		probes.Lock()
		clear(probes.byNetwork)
		probes.Unlock()
		warnUnisolated = sync.Once{}
	}
	forget()
	t.Cleanup(forget)
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	logged := logs(t)
	p := newProvider(t, map[string]any{"isolation": "auto"})
	newProvider(t, map[string]any{"isolation": "auto"})
	if n := strings.Count(logged(), "WITHOUT ISOLATION"); n != 1 || !strings.Contains(logged(), "apt-get install bubblewrap") {
		t.Errorf("%d warnings: %s", n, logged())
	}
	in := create(t, p, core.Spec{})
	if code, out := run(t, in, "echo $$"); code != 0 || !alivePID(strings.TrimSpace(out), in) {
		t.Errorf("not unisolated: %s", out)
	}
	for _, config := range []map[string]any{{"isolation": "bwrap"}, {"network": "none"}} {
		if _, err := newProvider(t, config).Create(t.Context(), core.Spec{}); core.KindOf(err) != core.KindCreate || !strings.Contains(err.Error(), "apt-get install bubblewrap") {
			t.Errorf("%v: %v", config, err)
		}
	}

	// One that is installed and may not make namespaces.
	forget()
	if err := os.WriteFile(bin+"/bwrap", []byte("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := newProvider(t, map[string]any{"isolation": "bwrap"}).Create(t.Context(), core.Spec{})
	if core.KindOf(err) != core.KindCreate || !strings.Contains(err.Error(), "No permissions") || !strings.Contains(err.Error(), "allow them there") {
		t.Errorf("%v", err)
	}
}

// alivePID tells whether a process id printed by a command is a number of this machine's, in the agent's neighbourhood.
func alivePID(pid string, in *instance) bool {
	var n int
	_, err := fmt.Sscan(pid, &n)
	return err == nil && n > in.rec.Agent.PID
}

func TestTheSpecsFieldsAreWarnedAboutInOrder(t *testing.T) {
	home(t)
	logged := logs(t)
	p := newProvider(t, map[string]any{"isolation": "none"})
	destroy(t, create(t, p, core.Spec{Metadata: map[string]string{"a": "b"}, Env: map[string]string{"A": "b"}}))
	if logged() != "" {
		t.Errorf("an ordinary spec is warned about: %s", logged())
	}
	destroy(t, create(t, p, core.Spec{
		Ports: []int{80}, Image: "x", TTL: time.Hour, ReadyTimeout: time.Minute, Resources: core.Resources{CPU: 1},
	}))
	said := logged()
	if strings.Count(said, "level=WARN") != 1 || !strings.Contains(said, "image, ttl_s, ready_timeout_s, ports, resources") || !strings.Contains(said, "resource limits") {
		t.Errorf("logged: %s", said)
	}
}

func TestOnlyThisUserCanRunCommands(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	group, err := user.LookupGroupId(me.Gid)
	if err != nil {
		t.Fatal(err)
	}
	for _, ok := range []string{"", me.Username, me.Uid, me.Uid + ":" + me.Gid, me.Username + ":" + group.Name} {
		if err := checkUser(ok); err != nil {
			t.Errorf("%q: %v", ok, err)
		}
	}
	for _, no := range []string{"no-such-user", "12345", me.Uid + ":12345", me.Username + ":", ":"} {
		if err := checkUser(no); core.KindOf(err) != core.KindInvalid || !strings.Contains(err.Error(), "cannot run commands as another user") {
			t.Errorf("%q: %v", no, err)
		}
	}
}

func TestOnlyNamedVariablesAreInherited(t *testing.T) {
	t.Setenv("NGS_TEST_SECRET", "s")
	t.Setenv("NGS_TEST_WANTED", "w")
	t.Setenv("LC_TIME", "C")
	t.Setenv("TERM", "dumb")
	env := environ([]string{"NGS_TEST_WANTED"}, map[string]string{"TERM": "xterm", "OWN": "a\nb"})
	all := "\n" + strings.Join(env, "\n") + "\n"
	for _, want := range []string{"\nNGS_TEST_WANTED=w\n", "\nLC_TIME=C\n", "\nTERM=xterm\n", "\nOWN=a\nb\n", "\nPATH="} {
		if !strings.Contains(all, want) {
			t.Errorf("%q is missing in %q", want, all)
		}
	}
	if strings.Contains(all, "NGS_TEST_SECRET") || strings.Contains(all, "TERM=dumb") {
		t.Errorf("too much: %q", all)
	}
}

func TestSlotsAreWaitedForWithinTheTimeout(t *testing.T) {
	home(t)
	p := newProvider(t, map[string]any{"isolation": "none", "concurrency": 1})
	in, other := create(t, p, core.Spec{}), create(t, newProvider(t, map[string]any{"isolation": "none", "concurrency": 1}), core.Spec{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan struct{})
	go func() {
		defer close(first)
		// Ended by cancel.
		_, _ = in.Exec(ctx, core.ExecRequest{Command: "sleep 60", Timeout: time.Minute}, core.Discard)
	}()
	for len(p.slots) == 0 {
		time.Sleep(time.Millisecond)
	}
	res, err := other.Exec(t.Context(), core.ExecRequest{Command: "true", Timeout: 200 * time.Millisecond}, core.Discard)
	if err != nil || res.ErrorType != core.ErrorTypeTimeout || res.Reason != "local command timed out after 0.2s" {
		t.Errorf("%+v, %v", res, err)
	}
	waiting, giveUp := context.WithTimeout(t.Context(), 100*time.Millisecond)
	if _, err := in.Exec(waiting, core.ExecRequest{Command: "true", Timeout: core.Forever}, core.Discard); core.KindOf(err) != core.KindCanceled {
		t.Errorf("%v", err)
	}
	giveUp()
	cancel()
	<-first
	if code, out := run(t, in, "echo ok"); code != 0 || out != "ok\n" {
		t.Errorf("the slot is not given back: %d %s", code, out)
	}
}

func TestAFailedCreateLeavesNothing(t *testing.T) {
	state, work := home(t)
	files := func() []string {
		a, _ := filepath.Glob(state + "/*/s/*")
		b, _ := filepath.Glob(work + "/*")
		return append(a, b...)
	}
	for _, isolation := range []string{"bwrap", "none"} {
		p := newProvider(t, map[string]any{"isolation": isolation, "workspace_root": work})
		for name, spec := range map[string]core.Spec{
			"a shell that is missing":     {Files: []core.File{{Path: "/proc/nope/x"}}},
			"a workdir that is a file":    {Workdir: "/etc/passwd"},
			"a workdir below a file":      {Workdir: "/etc/passwd/x"},
			"a directory made for it":     {Workdir: work + "/new/deep", Files: []core.File{{Path: "/proc/nope/x"}}},
			"no time to become ready":     {ReadyTimeout: time.Microsecond},
			"sidecars are not to be had":  {Sidecars: []core.SidecarSpec{{Name: "a", Image: "b"}}},
			"an entrypoint that is wrong": {Entrypoint: []string{"/no/such/program"}, Files: []core.File{{Path: "/proc/nope/x"}}},
		} {
			if in, err := p.Create(t.Context(), spec); err == nil {
				t.Errorf("%s: it was created", name)
				destroy(t, in)
			}
			if left := files(); len(left) > 0 {
				t.Errorf("%s, %s: %v is left", isolation, name, left)
			}
		}
	}
}

// A sandbox whose processes were killed from outside says so and can be destroyed.
func TestASandboxThatWasKilledIsStopped(t *testing.T) {
	for _, isolation := range []string{"bwrap", "none"} {
		_, work := home(t)
		in := create(t, newProvider(t, map[string]any{"isolation": isolation, "workspace_root": work}), core.Spec{})
		if err := in.rec.Agent.signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-in.proc.ended
		if st, err := in.Status(t.Context()); st != core.StatusStopped || err != nil {
			t.Errorf("%s: status %s, %v", isolation, st, err)
		}
		res, err := in.Exec(t.Context(), core.ExecRequest{Command: "true", Timeout: time.Minute}, core.Discard)
		if err != nil || res.ErrorType != core.ErrorTypeSandbox || !strings.Contains(res.Reason, "killed by signal 9") {
			t.Errorf("%s: %+v, %v", isolation, res, err)
		}
		destroy(t, in)
		if left, _ := filepath.Glob(work + "/*"); len(left) > 0 {
			t.Errorf("%s: %v is left", isolation, left)
		}
	}
}

// An agent that does not react is killed, and all below it.
func TestADeadLockedSandboxCanBeDestroyed(t *testing.T) {
	for _, isolation := range []string{"bwrap", "none"} {
		home(t)
		in := create(t, newProvider(t, map[string]any{"isolation": isolation}), core.Spec{})
		run(t, in, "(setsid sleep 61234567 >/dev/null 2>&1 </dev/null &)")
		if err := in.rec.Agent.signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		destroy(t, in)
		if out, _ := exec.Command("pgrep", "-f", "sleep 61234567").Output(); len(out) > 0 {
			t.Errorf("%s: processes are left: %s", isolation, out)
		}
	}
}

func TestConnectRefusesWhatIsNoLocalSandbox(t *testing.T) {
	home(t)
	p := newProvider(t, map[string]any{"isolation": "none"})
	for _, id := range []any{nil, 5, "", "../../etc", "local-12345", "docker-0123456789ab"} {
		if _, _, err := p.Connect(t.Context(), map[string]any{"sandbox_id": id}); core.KindOf(err) != core.KindInvalid {
			t.Errorf("%v: %v", id, err)
		}
	}
	if _, _, err := p.Connect(t.Context(), map[string]any{"sandbox_id": "local-0123456789ab"}); core.KindOf(err) != core.KindNotFound {
		t.Errorf("%v", err)
	}
}

// Containers of an engine start and stop while bubblewrap goes through this machine's mounts. Another program stands in
// its place that fails as it did then, and is bubblewrap after that.
func TestMountsThatComeAndGoFailNoStart(t *testing.T) {
	said := []string{
		`bwrap: Can't bind mount /oldroot/ on /newroot/: Unable to apply mount flags: remount "/newroot/var/lib/docker/overlay2/5a16-init/merged": No such file or directory`,
		`bwrap: Can't bind mount /oldroot/ on /newroot/: Unable to apply mount flags: remount "/newroot/tmp/mm/b/2": Invalid argument`,
	}
	state, work := home(t)
	p := newProvider(t, map[string]any{"isolation": "bwrap", "workspace_root": work})
	real := p.bwrap
	stand := func(times int, message string) {
		dir := t.TempDir()
		script := fmt.Sprintf("#!/bin/sh\nfor n in %s; do mkdir %s/$n 2>/dev/null && { echo '%s' >&2; exit 1; }; done\nexec %s \"$@\"\n",
			strings.Join(strings.Split("abcdefghijkl"[:times], ""), " "), dir, strings.ReplaceAll(message, "'", `'\''`), real)
		p.bwrap = filepath.Join(dir, "bwrap")
		if err := os.WriteFile(p.bwrap, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, message := range said {
		stand(3, message)
		if code, out := run(t, create(t, p, core.Spec{}), "echo ok"); code != 0 || out != "ok\n" {
			t.Errorf("%d %s", code, out)
		}
	}
	before, _ := filepath.Glob(state + "/*/s/*")
	for times, message := range map[int]string{12: said[0], 1: "bwrap: Can't bind mount /oldroot/: Permission denied"} {
		stand(times, message)
		if _, err := p.Create(t.Context(), core.Spec{}); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("%s: %v", message, err)
		}
	}
	if after, _ := filepath.Glob(state + "/*/s/*"); len(after) != len(before) {
		t.Errorf("left: %v", after)
	}
}

// What a process left that died is cleared away by the next one, and nothing else.
func TestLeftoversOfTheDeadAreCleared(t *testing.T) {
	state, work := home(t)
	p := newProvider(t, map[string]any{"isolation": "bwrap", "workspace_root": work})
	dead, alive := create(t, p, core.Spec{}), create(t, p, core.Spec{})
	run(t, dead, "mkdir d; touch d/f; chmod 0 d")
	// As if the creator had died, and the sandbox after it.
	gone := exec.Command("sleep", "60")
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := identify(gone.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	owner := core.Self()
	owner.PID, owner.Start = id.PID, id.Start
	if err := gone.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = gone.Wait()
	for _, in := range []*instance{dead, alive} {
		in.rec.Owner = owner
		if err := in.rec.save(in.dir.Path); err != nil {
			t.Fatal(err)
		}
	}
	if err := dead.rec.Agent.killAndWait(t.Context()); err != nil {
		t.Fatal(err)
	}
	clearLeftovers()
	left, _ := filepath.Glob(state + "/*/s/*")
	if len(left) != 1 || filepath.Base(left[0]) != alive.id {
		t.Errorf("left: %v", left)
	}
	if left, _ := filepath.Glob(work + "/*"); len(left) != 1 || filepath.Base(left[0]) != alive.id {
		t.Errorf("left: %v", left)
	}
	if code, out := run(t, alive, "echo ok"); code != 0 || out != "ok\n" {
		t.Errorf("the one in use is damaged: %d %s", code, out)
	}
}

// Run by TestAnOrdinaryUserGetsTheSame as another user too.
func TestThisUserGetsASandbox(t *testing.T) {
	home(t)
	in := create(t, newProvider(t, map[string]any{"isolation": "bwrap"}), core.Spec{})
	code, out := run(t, in, "id -u; touch f /tmp/f && stat -c %u f; ! touch /etc/x 2>/dev/null && echo closed; ls /run/docker.sock 2>/dev/null; echo $PPID")
	if want := fmt.Sprintf("%d\n%d\nclosed\n1\n", os.Getuid(), os.Getuid()); code != 0 || out != want {
		t.Errorf("%d %q, want %q", code, out, want)
	}
	run(t, in, "mkdir d; touch d/f; chmod 0 d; mkdir /tmp/d; touch /tmp/d/f; chmod 500 /tmp/d")
	for _, pause := range []func(context.Context) error{in.Pause, in.Resume} {
		if err := pause(t.Context()); err != nil {
			t.Error(err)
		}
	}
	ws := in.rec.Workspace
	destroy(t, in)
	if _, err := os.Stat(ws); err == nil {
		t.Error("the workspace is left")
	}
}

func TestAnOrdinaryUserGetsTheSame(t *testing.T) {
	if os.Getuid() != 0 {
		return // TestThisUserGetsASandbox was it
	}
	const nobody = 65534
	dir := t.TempDir()
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	program := dir + "/local.test"
	if err := os.WriteFile(program, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	for p := dir; p != os.TempDir() && p != "/"; p = filepath.Dir(p) {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	own := dir + "/home"
	if err := os.Mkdir(own, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(own, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestThisUserGetsASandbox$", "-test.v")
	cmd.Dir = own
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + own, "TMPDIR=" + own}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestThisUserGetsASandbox") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A create can be given up at any moment of bubblewrap's own start.
func TestACancelledCreateLeavesNoProcess(t *testing.T) {
	state, work := home(t)
	p := newProvider(t, map[string]any{"isolation": "bwrap", "workspace_root": work})
	for i := range 80 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		in, err := p.Create(ctx, core.Spec{})
		cancel()
		if err == nil {
			destroy(t, in)
		}
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lines {
		if raw, err := os.ReadFile(l); err == nil && strings.Contains(string(raw), state) {
			t.Errorf("left: %s %q", l, raw)
		}
	}
	if left, _ := filepath.Glob(work + "/*"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
