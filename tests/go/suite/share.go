package suite

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func noConnect(c Config) bool { return c.NoConnect }

// handOver serializes b's sandbox and connects to it through a second provider,
// by way of JSON as between two processes.
func (b *box) handOver(t testing.TB) *box {
	t.Helper()
	descriptor, err := b.sb.Serialize(b.context(t), "")
	if err != nil {
		t.Fatalf("serialize: %v", err)
	}
	return b.connect(t, descriptor)
}

func (b *box) connect(t testing.TB, descriptor map[string]any) *box {
	t.Helper()
	raw, err := json.Marshal(descriptor)
	if err != nil {
		t.Fatalf("the descriptor is not JSON: %v", err)
	}
	var copied map[string]any
	if err := json.Unmarshal(raw, &copied); err != nil {
		t.Fatal(err)
	}
	other := newBox(t, b.cfg)
	if other.sb, err = core.Connect(b.context(t), other.provider, copied); err != nil {
		t.Fatalf("connect: %v", err)
	}
	return other
}

// drop lets go of a connected sandbox.
func (b *box) drop(t testing.TB) {
	t.Helper()
	if err := b.sb.Disconnect(); err != nil {
		t.Errorf("disconnect: %v", err)
	}
	if err := b.provider.Close(b.context(t)); err != nil {
		t.Errorf("close the provider: %v", err)
	}
}

var shareCases = []testCase{
	{name: "another_process_gets_another_sandbox", absent: noConnect, run: func(t *testing.T, b *box) {
		b.spec.Env = map[string]string{"V_SPEC": "kept\nhere"}
		b.start(t)
		b.ok(t, "echo from-the-first >shared.txt")
		other := b.handOver(t)
		if other.sb.ID() != b.sb.ID() {
			t.Errorf("ids %q and %q", other.sb.ID(), b.sb.ID())
		}
		other.sh(t, `cat shared.txt; printf '%s' "$V_SPEC"`).wantStdout(t, "from-the-first\nkept\nhere")
		if a, c := b.ok(t, "pwd"), other.ok(t, "pwd"); a != c {
			t.Errorf("directories %q and %q", a, c)
		}
		other.upload(t, localFile(t, "f", []byte("up"), 0o644), "up.txt")
		b.sh(t, "cat up.txt").wantStdout(t, "up")
		if st, err := other.sb.Status(b.context(t)); st != core.StatusRunning || err != nil {
			t.Errorf("status %v, %v", st, err)
		}
		other.drop(t)
		b.sh(t, "echo alive").wantStdout(t, "alive\n")
	}},
	{name: "defaults_are_lost_between_processes", absent: noConnect, run: func(t *testing.T, b *box) {
		b.start(t)
		b.ok(t, "mkdir -p sub")
		dir := strings.TrimSpace(b.ok(t, "pwd")) + "/sub"
		b.sb.SetDefaultWorkdir(dir)
		if !b.cfg.NoUsers {
			b.sb.SetDefaultUser("12345")
		}
		other := b.handOver(t)
		other.sh(t, "pwd").wantStdout(t, dir+"\n")
		if !b.cfg.NoUsers {
			other.sh(t, "id -u").wantStdout(t, "12345\n")
		}
		other.drop(t)
	}},
	{name: "the_descriptor_tells_secrets", absent: noConnect, run: func(t *testing.T, b *box) {
		b.spec.Env = map[string]string{"V_SECRET": "secret-value"}
		b.start(t)
		descriptor, err := b.sb.Serialize(b.context(t), "")
		if err != nil {
			t.Fatal(err)
		}
		raw, err := json.Marshal(descriptor)
		if err != nil || strings.Contains(string(raw), "secret-value") {
			t.Errorf("descriptor %s, %v", raw, err)
		}
	}},
	{name: "only_the_creator_can_end_a_sandbox", absent: noConnect, run: func(t *testing.T, b *box) {
		var before []string
		if b.cfg.Leftovers != nil {
			before = b.cfg.Leftovers(t)
		}
		b.start(t)
		other := b.handOver(t)
		m := marker()
		b.ok(t, "sleep "+m+" >/dev/null 2>&1 </dev/null &")
		other.close(t)
		b.wait(t, "the creator sees the end", func() bool {
			st, err := b.sb.Status(b.context(t))
			return err == nil && st == core.StatusStopped
		})
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Errorf("stop by the creator: %v", err)
		}
		if !b.cfg.RemoteProcesses && len(hostProcesses("cmdline", "sleep\x00"+m)) > 0 {
			t.Error("its process is left")
		}
		if b.cfg.Leftovers != nil {
			b.wantLeftovers(t, before)
		}
	}},
	{name: "a_sandbox_that_has_ended_is_connected_to", absent: noConnect, run: func(t *testing.T, b *box) {
		b.start(t)
		descriptor, err := b.sb.Serialize(b.context(t), "")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Fatal(err)
		}
		_, err = core.Connect(b.context(t), b.provider, descriptor)
		wantKind(t, err, core.KindNotFound)
	}},
	{name: "a_stranger_to_the_sandbox_disconnects_its_creator", run: func(t *testing.T, b *box) {
		b.start(t)
		wantKind(t, b.sb.Disconnect(), core.KindConflict)
	}},
	{name: "a_command_of_one_holds_back_the_other", absent: noConnect, run: func(t *testing.T, b *box) {
		b.start(t)
		other := b.handOver(t)
		m := marker()
		ctx, cancel := context.WithCancel(b.context(t))
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.try(ctx, core.ExecRequest{Command: "sleep " + m})
		}()
		b.waitSleepers(t, m, 1)
		other.sh(t, "echo ok").wantStdout(t, "ok\n")
		cancel()
		<-done
		other.drop(t)
	}},
	{name: "a_missing_capability_is_silent", absent: func(c Config) bool { return !c.NoConnect }, run: func(t *testing.T, b *box) {
		b.start(t)
		_, err := b.sb.Serialize(b.context(t), "")
		wantKind(t, err, core.KindNotSupported)
	}},
}
