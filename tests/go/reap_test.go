package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/all"
)

// harnessEnv holds, in a process that TestHarness is to play a harness in, what that does.
const harnessEnv = "NGS_TEST_HARNESS"

// harnessPlan is what a harness starts.
type harnessPlan struct {
	Provider string
	Config   settings
	Image    string
	Sidecar  bool // each sandbox gets one
	Count    int
	Marker   string // a command line that can be found among this machine's processes
}

// TestHarness is another process in which a harness makes sandboxes and waits for its end. In this one it does nothing.
func TestHarness(t *testing.T) {
	raw := os.Getenv(harnessEnv)
	if raw == "" {
		return
	}
	var plan harnessPlan
	if err := json.Unmarshal([]byte(raw), &plan); err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(plan.Config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := all.Registry().New(plan.Provider, config)
	if err != nil {
		t.Fatal(err)
	}
	ledger := core.NewLedger()
	ctx := context.Background()
	var boxes []*core.Sandbox
	for n := range plan.Count {
		spec := core.Spec{Image: plan.Image}
		if plan.Sidecar {
			spec.Sidecars = []core.SidecarSpec{{Name: "beside", Image: plan.Image}}
		}
		s := core.NewSandbox(p, spec, core.WithLedger(ledger))
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, s)
		// Until the shell's child has become the command: paused before, it would never have the marker.
		command := plan.Marker + " >/dev/null 2>&1 </dev/null & until grep -qx sleep /proc/$!/comm; do :; done"
		res, err := s.Exec(ctx, core.ExecRequest{Command: command, KeepBackground: true}, nil)
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("%+v, %v", res, err)
		}
		switch n {
		case 0:
			_, err = s.Serialize(ctx, "")
		case 1:
			err = s.Pause(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("box %s\n", s.ID())
	}
	fmt.Println("ready")
	// Each line asks for a sign of life of every sandbox; their end is the end.
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		for _, s := range boxes[2:] {
			res, err := s.Exec(ctx, core.ExecRequest{Command: "exit 7"}, nil)
			if err != nil || res.ExitCode != 7 {
				t.Fatalf("%+v, %v", res, err)
			}
		}
		fmt.Println("alive")
	}
	for _, s := range boxes {
		_ = s.Resume(ctx) // of the one that is paused
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
}

// harness is such a process as its starter sees it.
type harness struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	boxes []string
}

func startHarness(t *testing.T, run string, plan harnessPlan) *harness {
	t.Helper()
	t.Cleanup(func() { reapRun(t, run, plan) })
	raw, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, cmd: exec.Command(os.Args[0], "-test.run=^TestHarness$"), lines: make(chan string)}
	h.cmd.Env = append(os.Environ(), harnessEnv+"="+string(raw), core.RunEnv+"="+run)
	h.cmd.Stderr = os.Stderr
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { // ends with the process
		defer close(h.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			h.lines <- s.Text()
		}
	}()
	t.Cleanup(func() { h.kill() })
	for {
		line := h.line()
		if id, ok := strings.CutPrefix(line, "box "); ok {
			h.boxes = append(h.boxes, id)
		}
		if line == "ready" {
			return h
		}
	}
}

// reapRun is for a test that fails half way: what it left would live on for ever.
func reapRun(t *testing.T, run string, plan harnessPlan) {
	config, err := json.Marshal(plan.Config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := all.Registry().New(plan.Provider, config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() { _ = p.Close(ctx) }()
	found, err := core.Survey(ctx, p)
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		if f.Owner.Run == run {
			t.Logf("%s is left", f.ID)
			if err := core.Reap(ctx, p, f.ID); err != nil {
				t.Error(err)
			}
		}
	}
}

func (h *harness) line() string {
	h.t.Helper()
	select {
	case line, ok := <-h.lines:
		if !ok {
			h.t.Fatal("the harness has ended")
		}
		return line
	case <-time.After(2 * time.Minute):
		h.t.Fatal("the harness says nothing")
		return ""
	}
}

// lives makes the harness use its sandboxes.
func (h *harness) lives() {
	h.t.Helper()
	if _, err := io.WriteString(h.in, "?\n"); err != nil {
		h.t.Fatal(err)
	}
	if line := h.line(); line != "alive" {
		h.t.Fatal(line)
	}
}

func (h *harness) kill() {
	_ = h.cmd.Process.Signal(syscall.SIGKILL)
	for range h.lines {
		// Read to its end.
	}
	_ = h.cmd.Wait()
}

// ends lets the harness stop its sandboxes.
func (h *harness) ends() {
	h.t.Helper()
	if err := h.in.Close(); err != nil {
		h.t.Fatal(err)
	}
	for range h.lines {
		// Read to its end.
	}
	if err := h.cmd.Wait(); err != nil {
		h.t.Error(err)
	}
}

// runOf surveys a provider for the sandboxes of one run.
func runOf(t *testing.T, p core.Provider, run string) map[string]core.Found {
	t.Helper()
	all, err := core.Survey(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]core.Found{}
	for _, f := range all {
		if f.Owner.Run == run {
			found[f.ID] = f
		}
	}
	return found
}

// livingWith counts this machine's living processes that have a command line.
func livingWith(t *testing.T, line string) int {
	t.Helper()
	want := []byte(strings.ReplaceAll(line, " ", "\x00") + "\x00")
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil && bytes.HasSuffix(raw, want) {
			n++
		}
	}
	return n
}

func ledgers(t *testing.T, state, run string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(state, "nemo-gym-sandbox", "runs", run+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// reapAfterKill kills a harness and reaps what it left, beside another one that lives.
func reapAfterKill(t *testing.T, plan harnessPlan, work string) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	seconds := 100000 + os.Getpid()
	marker := func(n int) string { return "sleep " + strconv.Itoa(seconds*10+n) }
	plan.Marker = marker(1)
	killed := startHarness(t, "killed-run", plan)
	other := plan
	other.Marker, other.Count = marker(2), 3
	living := startHarness(t, "living-run", other)
	if n := livingWith(t, plan.Marker); n != plan.Count {
		t.Fatalf("%d processes of the harness's commands, not %d", n, plan.Count)
	}
	config, err := json.Marshal(plan.Config)
	if err != nil {
		t.Fatal(err)
	}
	p, err := all.Registry().New(plan.Provider, config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(context.Background()) }()

	for id, f := range runOf(t, p, "killed-run") {
		if f.OwnerState != core.OwnerAlive || f.Kept == "" || f.Owner.PID != killed.cmd.Process.Pid {
			t.Errorf("%s: %+v of a living harness", id, f)
		}
	}
	killed.kill()

	found := runOf(t, p, "killed-run")
	if len(found) != plan.Count {
		t.Fatalf("%d sandboxes are found, not %d", len(found), plan.Count)
	}
	for n, id := range killed.boxes {
		f := found[id]
		want := core.StatusRunning
		if n == 1 {
			want = core.StatusPaused
		}
		if f.OwnerState != core.OwnerDead || f.Status != want || f.Leftover || time.Since(f.Created) > 5*time.Minute {
			t.Errorf("sandbox %d: %+v", n, f)
		}
		if handedOver := n == 0; handedOver != (f.Kept != "") {
			t.Errorf("sandbox %d is kept: %q", n, f.Kept)
		}
	}
	for id, f := range runOf(t, p, "living-run") {
		if f.OwnerState != core.OwnerAlive || f.Kept == "" {
			t.Errorf("%s: %+v of a living harness", id, f)
		}
	}

	// Two reapers at once, as when two people notice.
	var both sync.WaitGroup
	for range 2 {
		for _, id := range killed.boxes[1:] {
			both.Go(func() {
				if err := core.Reap(t.Context(), p, id); err != nil {
					t.Errorf("reap %s: %v", id, err)
				}
			})
		}
	}
	both.Wait()
	left := runOf(t, p, "killed-run")
	if _, ok := left[killed.boxes[0]]; !ok || len(left) != 1 {
		t.Errorf("left are %v, not only the one that was handed over", left)
	}
	if n := livingWith(t, plan.Marker); n != 1 {
		t.Errorf("%d processes are left of the sandboxes that were reaped, and of the one that was handed over", n)
	}
	if err := core.Tidy(t.Context(), p); err != nil {
		t.Error(err)
	}
	if len(ledgers(t, state, "killed-run")) != 1 {
		t.Error("the note about the one that was handed over is gone")
	}

	if err := core.Reap(t.Context(), p, killed.boxes[0]); err != nil {
		t.Error(err)
	}
	if err := core.Tidy(t.Context(), p); err != nil {
		t.Error(err)
	}
	if left := ledgers(t, state, "killed-run"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if n := livingWith(t, plan.Marker); n != 0 {
		t.Errorf("%d processes are left", n)
	}
	for _, id := range killed.boxes {
		for _, dir := range []string{filepath.Join(state, "nemo-gym-sandbox", "s", id), filepath.Join(work, id)} {
			if _, err := os.Stat(dir); err == nil {
				t.Errorf("%s is left", dir)
			}
		}
	}

	living.lives()
	if n := livingWith(t, other.Marker); n != other.Count {
		t.Errorf("%d processes of the living harness, not %d", n, other.Count)
	}
	if len(ledgers(t, state, "living-run")) != 1 {
		t.Error("the living harness's ledger is gone")
	}
	living.ends()
	if n := len(runOf(t, p, "living-run")); n != 0 {
		t.Errorf("%d sandboxes are left of a harness that stopped them", n)
	}
	if left := ledgers(t, state, ""); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestReapLocalIsolated(t *testing.T) {
	work := t.TempDir()
	reapAfterKill(t, harnessPlan{Provider: "local", Count: 6, Config: settings{
		"isolation": "bwrap", "workspace_root": work, "orphan_timeout_s": 0,
	}}, work)
}

func TestReapLocalUnisolated(t *testing.T) {
	work := t.TempDir()
	reapAfterKill(t, harnessPlan{Provider: "local", Count: 6, Config: settings{
		"isolation": "none", "workspace_root": work, "orphan_timeout_s": 3600,
	}}, work)
}

func TestReapDockerAgent(t *testing.T) {
	reapAfterKill(t, harnessPlan{Provider: "docker", Count: 4, Image: ownTag(t, testImage), Config: settings{
		"create": settings{"orphan_timeout_s": 0, "agent_transport": "socket"}, "exec": settings{"mode": "agent"},
	}}, "/nowhere")
}

func TestReapDockerEngine(t *testing.T) {
	reapAfterKill(t, harnessPlan{Provider: "docker", Count: 4, Image: ownTag(t, testImage), Config: settings{
		"exec": settings{"mode": "engine"},
	}}, "/nowhere")
}

// A sandbox that ended by itself after its owner's death leaves its folder on this machine.
func TestReapTheFolderOfAContainerThatIsGone(t *testing.T) {
	folders := ownState(t)
	cfg := settings{"create": settings{"orphan_timeout_s": 0, "agent_transport": "socket"}, "exec": settings{"mode": "agent"}}
	h := startHarness(t, "folder-run", harnessPlan{Provider: "docker", Count: 3, Image: ownTag(t, testImage), Config: cfg, Marker: "sleep 600"})
	remove := func(id string) {
		if err := engine(t).ContainerRemove(t.Context(), id, container.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		_ = engine(t).Close()
	}
	there := func() []string {
		var names []string
		entries, err := os.ReadDir(folders)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	p := newDocker(t, cfg)
	elsewhere := newDocker(t, settings{"connection": settings{"host": "unix:///run/docker.sock"}})

	// While the owner lives it may be about to make the container.
	remove(h.boxes[0])
	if f, ok := runOf(t, p, "folder-run")[h.boxes[0]]; ok {
		t.Errorf("the folder of a sandbox whose owner lives is listed: %+v", f)
	}
	if err := core.Reap(t.Context(), p, h.boxes[0]); err != nil || !slices.Contains(there(), h.boxes[0]) {
		t.Errorf("the folder of a sandbox whose owner lives was removed (%v)", err)
	}

	h.kill()
	f := runOf(t, p, "folder-run")[h.boxes[0]]
	if !f.Leftover || f.OwnerState != core.OwnerDead || f.Kept != "" {
		t.Errorf("%+v", f)
	}
	if f, ok := runOf(t, elsewhere, "folder-run")[h.boxes[0]]; ok {
		t.Errorf("the folder of another engine's sandbox is listed: %+v", f)
	}
	for _, id := range h.boxes {
		if err := core.Reap(t.Context(), p, id); err != nil {
			t.Error(err)
		}
	}
	if left := there(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestReapEndsSidecarsWithTheirSandbox(t *testing.T) {
	folders := ownState(t)
	tag := ownTag(t, testImage)
	cfg := settings{"create": settings{"orphan_timeout_s": 0}}
	h := startHarness(t, "sidecar-run", harnessPlan{Provider: "docker", Count: 3, Sidecar: true, Image: tag, Config: cfg, Marker: "sleep 600"})
	h.kill()
	p := newDocker(t, cfg)
	found := runOf(t, p, "sidecar-run")
	for _, id := range h.boxes {
		if _, ok := found[id]; !ok {
			t.Errorf("%s is missing", id)
		}
	}
	if len(found) != 3 || len(containersOf(t, tag)) != 6 {
		t.Errorf("found: %v", found)
	}
	for n, id := range h.boxes {
		if n == 2 { // whose sandbox has gone without it
			if err := engine(t).ContainerRemove(t.Context(), id, container.RemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			_ = engine(t).Close()
			for id := range runOf(t, p, "sidecar-run") {
				if err := core.Reap(t.Context(), p, id); err != nil {
					t.Error(err)
				}
			}
		} else if err := core.Reap(t.Context(), p, id); err != nil {
			t.Error(err)
		}
		if left := containersOf(t, tag); len(left) != 2*(2-n) {
			t.Errorf("after %d: %v", n+1, left)
		}
	}
	if left, err := os.ReadDir(folders); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestReapTouchesNoContainerOfOthers(t *testing.T) {
	tag := ownTag(t, testImage)
	made, err := engine(t).ContainerCreate(t.Context(), &container.Config{Image: tag, Cmd: []string{"sh"}}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = engine(t).ContainerRemove(context.Background(), made.ID, container.RemoveOptions{Force: true})
	}()
	p := newDocker(t, nil)
	if err := core.Reap(t.Context(), p, made.ID); core.KindOf(err) != core.KindInvalid {
		t.Errorf("%v", err)
	}
	if len(containersOf(t, tag)) != 1 {
		t.Error("it was removed")
	}
	found, err := core.Survey(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.ID == made.ID {
			t.Error("it is listed")
		}
	}
}

// Whoever has another state directory can't see whether the sandbox was handed over.
func TestAnotherUsersContainersAreKept(t *testing.T) {
	ownState(t)
	h := startHarness(t, "their-run", harnessPlan{Provider: "docker", Count: 2, Image: ownTag(t, testImage), Config: settings{}, Marker: "sleep 600"})
	h.kill()
	p := newDocker(t, nil)
	mine := runOf(t, p, "their-run")
	ownState(t)
	for id, f := range runOf(t, p, "their-run") {
		if f.OwnerState != core.OwnerUnknown || f.Kept == "" {
			t.Errorf("%+v", f)
		}
		if err := core.Reap(t.Context(), p, id); err != nil {
			t.Error(err)
		}
	}
	if len(mine) != 2 || len(runOf(t, p, "their-run")) != 0 {
		t.Errorf("found at first: %v", mine)
	}
}
