package local

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// deadOwner is a process of this machine that has ended.
func deadOwner(t *testing.T) core.Owner {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id, err := identify(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	o := core.Self()
	o.PID, o.Start = id.PID, id.Start
	return o
}

func find(t *testing.T, p *provider, id string) (core.Found, bool) {
	t.Helper()
	found, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.ID == id {
			return f, true
		}
	}
	return core.Found{}, false
}

// A harness that is killed between the start of a sandbox and the note about it leaves a process that only its command
// line tells of.
func TestASandboxWhoseMakerWasKilledBeforeItNotedTheAgentIsReaped(t *testing.T) {
	for _, isolation := range []string{"bwrap", "none"} {
		t.Run(isolation, func(t *testing.T) {
			_, work := home(t)
			p := newProvider(t, map[string]any{"isolation": isolation, "workspace_root": work, "orphan_timeout_s": 0})
			in := create(t, p, core.Spec{})
			agent := in.rec.Agent
			rec := in.rec
			rec.Owner, rec.Agent = deadOwner(t), procID{}
			if err := rec.save(in.dir.Path); err != nil {
				t.Fatal(err)
			}
			clearLeftovers()
			f, ok := find(t, p, in.id)
			if !ok || f.Status != core.StatusRunning || f.OwnerState != core.OwnerDead {
				t.Fatalf("%+v, %v", f, ok)
			}
			if err := p.Reap(t.Context(), in.id); err != nil {
				t.Fatal(err)
			}
			if agent.alive() {
				t.Error("the agent lives")
			}
			for _, dir := range []string{in.dir.Path, in.rec.Workspace} {
				if _, err := os.Stat(dir); err == nil {
					t.Errorf("%s is left", dir)
				}
			}
			if err := p.Reap(t.Context(), in.id); err != nil {
				t.Errorf("reap one that is gone: %v", err)
			}
		})
	}
}

func TestAFolderWithoutARecordIsReapedWhenItIsOld(t *testing.T) {
	state, _ := home(t)
	p := newProvider(t, map[string]any{"isolation": "none"})
	const id = "local-0123456789ab"
	dir := filepath.Join(state, "nemo-gym-sandbox", "s", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if f, ok := find(t, p, id); ok {
		t.Errorf("one that may be in the making is listed: %+v", f)
	}
	old := time.Now().Add(-2 * recordGrace)
	if err := os.Chtimes(dir, old, old); err != nil {
		t.Fatal(err)
	}
	if f, ok := find(t, p, id); !ok || !f.Leftover || f.OwnerState != core.OwnerDead {
		t.Errorf("%+v, %v", f, ok)
	}
	if err := p.Reap(t.Context(), id); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it is left")
	}
}

// A state directory may be shared with other machines, whose processes can't be ended from here.
func TestASandboxOfAnotherMachineIsNotReaped(t *testing.T) {
	_, work := home(t)
	p := newProvider(t, map[string]any{"isolation": "bwrap", "workspace_root": work})
	in := create(t, p, core.Spec{})
	rec := in.rec
	rec.Owner.Host, rec.Owner.Boot, rec.Agent.Realm = "elsewhere", "another boot", "another realm"
	if err := rec.save(in.dir.Path); err != nil {
		t.Fatal(err)
	}
	if f, ok := find(t, p, in.id); !ok || f.OwnerState != core.OwnerUnknown || f.Status != core.StatusUnknown || f.Leftover {
		t.Errorf("%+v, %v", f, ok)
	}
	if err := p.Reap(t.Context(), in.id); core.KindOf(err) != core.KindConflict {
		t.Errorf("%v", err)
	}
	if code, out := run(t, in, "echo ok"); code != 0 || out != "ok\n" {
		t.Errorf("it is damaged: %d %s", code, out)
	}
}

func TestReapRefusesWhatIsNoSandbox(t *testing.T) {
	home(t)
	p := newProvider(t, map[string]any{"isolation": "none"})
	for _, id := range []string{"", "..", "../..", "local-", "local-0123456789ab/..", "nemo-gym-1"} {
		if err := p.Reap(t.Context(), id); core.KindOf(err) != core.KindInvalid {
			t.Errorf("%q: %v", id, err)
		}
	}
}
