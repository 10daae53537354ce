package suite

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

var lifecycleCases = []testCase{
	{name: "what_is_called_before_the_start_panics_or_hangs", run: func(t *testing.T, b *box) {
		b.sb = core.NewSandbox(b.provider, b.spec)
		_, err := b.sb.Exec(b.context(t), core.ExecRequest{Command: "true"}, nil)
		wantKind(t, err, core.KindNotStarted)
		wantKind(t, b.sb.Upload(b.context(t), "/etc/passwd", "/tmp/x"), core.KindNotStarted)
		if st, err := b.sb.Status(b.context(t)); st != core.StatusUnknown || err != nil {
			t.Errorf("status %v, %v", st, err)
		}
	}},
	{name: "a_second_start_makes_a_second_sandbox", run: func(t *testing.T, b *box) {
		b.start(t)
		id := b.sb.ID()
		wantKind(t, b.sb.Start(b.context(t)), core.KindConflict)
		if b.sb.ID() != id || id == "" {
			t.Errorf("id changed from %q to %q", id, b.sb.ID())
		}
		b.sh(t, "echo ok").wantStdout(t, "ok\n")
	}},
	{name: "two_who_stop_get_in_each_others_way", run: func(t *testing.T, b *box) {
		b.start(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := b.sb.Stop(b.context(t)); err != nil {
					t.Errorf("stop: %v", err)
				}
			})
		}
		wg.Wait()
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Errorf("stop again: %v", err)
		}
		if st, err := b.sb.Status(b.context(t)); st != core.StatusStopped || err != nil {
			t.Errorf("status %v, %v", st, err)
		}
		_, err := b.sb.Exec(b.context(t), core.ExecRequest{Command: "true"}, nil)
		wantKind(t, err, core.KindClosed)
		wantKind(t, b.sb.Start(b.context(t)), core.KindClosed)
	}},
	{name: "the_backend_fails_when_told_to_end_what_has_ended", run: func(t *testing.T, b *box) {
		in, err := b.provider.Create(b.context(t), b.spec)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Detach()
		for range 2 {
			if err := in.Destroy(b.context(t)); err != nil {
				t.Errorf("destroy: %v", err)
			}
		}
		if st, err := in.Status(b.context(t)); st != core.StatusStopped || err != nil {
			t.Errorf("status %v, %v", st, err)
		}
	}},
	{name: "a_command_in_flight_holds_the_stop_back_or_hangs_itself", run: func(t *testing.T, b *box) {
		b.start(t)
		m := marker()
		done := make(chan result, 1)
		go func() {
			r, err := b.try(b.context(t), core.ExecRequest{Command: "trap '' TERM; echo begun; sleep " + m + "; sleep " + m})
			if err != nil {
				t.Errorf("exec: %v", err)
			}
			done <- r
		}()
		b.waitSleepers(t, m, 1)
		began := time.Now()
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Fatalf("stop: %v", err)
		}
		select {
		case r := <-done:
			if r.ErrorType != core.ErrorTypeSandbox || r.ExitCode != core.NoExitCode || r.Reason == "" || !b.cfg.NoStreaming && !r.printed("begun\n", "") {
				t.Errorf("got %s", r)
			}
		case <-time.After(b.cfg.deadline()):
			t.Error("the command in flight does not return")
		}
		if took := time.Since(began); took > b.cfg.times(15*time.Second) {
			t.Errorf("took %s", took)
		}
	}},
	{name: "a_process_outlives_its_sandbox", absent: func(c Config) bool { return c.RemoteProcesses }, run: func(t *testing.T, b *box) {
		b.start(t)
		m := marker()
		b.ok(t, "(setsid sleep "+m+" >/dev/null 2>&1 </dev/null &); (setsid sh -c 'setsid sleep "+m+" &' >/dev/null 2>&1 </dev/null &)")
		b.waitSleepers(t, m, 2)
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Fatal(err)
		}
		if pids := hostProcesses("cmdline", "sleep\x00"+m); len(pids) > 0 {
			t.Errorf("processes %v are left", pids)
		}
	}},
	{name: "a_sandbox_leaves_something_behind", absent: func(c Config) bool { return c.Leftovers == nil }, run: func(t *testing.T, b *box) {
		before := b.cfg.Leftovers(t)
		b.start(t)
		if now := b.cfg.Leftovers(t); len(now) <= len(before) {
			t.Fatalf("the sandbox is not among %v: Leftovers sees nothing", now)
		}
		// Whatever commands do to the files that they own.
		dir := b.scratch(t)
		b.ok(t, "mkdir d; touch d/f; chmod 0 d/f d; touch "+dir+"/f; chmod 0 "+dir)
		if b.cfg.Unisolated {
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
		}
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Fatal(err)
		}
		b.wantLeftovers(t, before)
	}},
	{name: "a_cancelled_start_leaves_a_sandbox", absent: func(c Config) bool { return c.Leftovers == nil }, run: func(t *testing.T, b *box) {
		before := b.cfg.Leftovers(t)
		for _, d := range []time.Duration{0, 2, 5, 10, 20, 50, 200, 400, 900} {
			sb := core.NewSandbox(b.provider, b.spec)
			ctx, cancel := context.WithTimeout(t.Context(), d*time.Millisecond)
			err := sb.Start(ctx)
			cancel()
			if err == nil {
				err = sb.Stop(b.context(t))
				if err != nil {
					t.Errorf("stop: %v", err)
				}
				continue
			}
			if err := sb.Stop(b.context(t)); err != nil {
				t.Errorf("stop after a failed start: %v", err)
			}
		}
		b.wantLeftovers(t, before)
	}},
	{name: "a_stop_during_the_start_leaves_a_sandbox", absent: func(c Config) bool { return c.Leftovers == nil }, run: func(t *testing.T, b *box) {
		before := b.cfg.Leftovers(t)
		b.sb = core.NewSandbox(b.provider, b.spec)
		done := make(chan error, 1)
		go func() { done <- b.sb.Start(b.context(t)) }()
		b.wait(t, "the start is under way", func() bool {
			st, _ := b.sb.Status(b.context(t))
			return st != core.StatusUnknown
		})
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Errorf("stop: %v", err)
		}
		<-done
		b.wantLeftovers(t, before)
	}},
	{name: "a_running_sandbox_does_not_say_so", run: func(t *testing.T, b *box) {
		b.start(t)
		if st, err := b.sb.Status(b.context(t)); st != core.StatusRunning || err != nil {
			t.Errorf("status %v, %v", st, err)
		}
	}},
	{name: "a_sandboxes_own_values_do_not_reach_its_commands", run: func(t *testing.T, b *box) {
		b.spec.Env = map[string]string{"V_SPEC": "spec\n\"$x\"", "V_BOTH": "spec"}
		b.start(t)
		r := b.run(t, core.ExecRequest{Command: `printf '%s|%s' "$V_SPEC" "$V_BOTH"`, Env: map[string]string{"V_BOTH": "call"}})
		r.wantStdout(t, "spec\n\"$x\"|call")
	}},
	{name: "values_of_the_caller_leak_into_the_sandbox", run: func(t *testing.T, b *box) {
		t.Setenv("V_HOST_SECRET", "host-only-value")
		b.start(t)
		r := b.sh(t, "env; tr '\\0' '\\n' </proc/1/environ 2>/dev/null; true")
		if strings.Contains(r.stdout, "host-only-value") {
			t.Error("the value is visible in the sandbox")
		}
	}},
	{name: "a_directory_of_the_spec_is_not_made_or_not_used", run: func(t *testing.T, b *box) {
		b.spec.Workdir = t.TempDir() + "/new/work dir"
		b.start(t)
		b.sh(t, "pwd; touch here").wantStdout(t, b.spec.Workdir+"\n")
		b.upload(t, localFile(t, "f", []byte("x"), 0o644), "f")
		b.sh(t, "ls "+quote(b.spec.Workdir)).wantStdout(t, "f\nhere\n")
		b.sb.SetDefaultWorkdir("/")
		b.sh(t, "pwd").wantStdout(t, "/\n")
		b.sb.SetDefaultWorkdir("")
		b.sh(t, "pwd").wantStdout(t, b.spec.Workdir+"\n")
	}},
	{name: "a_file_of_the_spec_is_missing_at_the_first_command", run: func(t *testing.T, b *box) {
		path := "/tmp/suite-spec-file-" + marker()
		b.spec.Files = []core.File{{Path: "rel/a.txt", Content: "ä\n"}, {Path: path, Content: ""}, {Path: "rel/a.txt", Content: "later wins"}}
		b.start(t)
		b.sh(t, "cat rel/a.txt "+path+"; rm "+path).wantStdout(t, "later wins")
	}},
	{name: "a_sandbox_outlives_its_time", absent: func(c Config) bool { return c.NoTTL }, run: func(t *testing.T, b *box) {
		b.spec.TTL = b.cfg.times(3 * time.Second)
		b.start(t)
		m := marker()
		r := b.run(t, core.ExecRequest{Command: "echo begun; sleep " + m, Timeout: 3 * b.cfg.deadline()})
		if r.ErrorType != core.ErrorTypeSandbox || r.Reason == "" || !r.printed("begun\n", "") {
			t.Errorf("got %s", r)
		}
		b.wait(t, "the status is stopped", func() bool {
			st, err := b.sb.Status(b.context(t))
			return err == nil && st == core.StatusStopped
		})
		r, err := b.try(b.context(t), core.ExecRequest{Command: "true"})
		if err == nil && r.ErrorType != core.ErrorTypeSandbox {
			t.Errorf("got %s", r)
		}
		if !b.cfg.RemoteProcesses && len(hostProcesses("cmdline", "sleep\x00"+m)) > 0 {
			t.Error("its process is left")
		}
	}},
	{name: "a_sandbox_outlives_its_main_process", absent: func(c Config) bool { return c.NoEntrypoint }, run: func(t *testing.T, b *box) {
		m := marker()
		b.spec.Entrypoint = []string{"sh", "-c", "while ! [ -e /tmp/suite-end-" + m + " ]; do sleep 0.05; done; rm /tmp/suite-end-" + m + "; exit 3"}
		b.start(t)
		b.sh(t, "echo ok").wantStdout(t, "ok\n")
		b.ok(t, "touch /tmp/suite-end-"+m)
		b.wait(t, "the status is stopped", func() bool {
			st, err := b.sb.Status(b.context(t))
			return err == nil && (st == core.StatusStopped || b.cfg.FailedEnds && st == core.StatusError)
		})
	}},
	{name: "a_paused_process_goes_on_or_does_not_come_back", absent: func(c Config) bool { return c.NoPause }, run: func(t *testing.T, b *box) {
		b.start(t)
		b.ok(t, "touch ticks; (while :; do cut -d' ' -f1 /proc/uptime >>ticks; sleep 0.05; done) >/dev/null 2>&1 </dev/null &")
		ticks := func() []string { return strings.Fields(b.ok(t, "cat ticks")) }
		b.wait(t, "it ticks", func() bool { return len(ticks()) > 1 })
		for range 2 {
			before := len(ticks())
			if err := b.sb.Pause(b.context(t)); err != nil {
				t.Fatalf("pause: %v", err)
			}
			if st, err := b.sb.Status(b.context(t)); st != core.StatusPaused || err != nil {
				t.Errorf("status %v, %v", st, err)
			}
			time.Sleep(time.Second)
			if err := b.sb.Resume(b.context(t)); err != nil {
				t.Fatalf("resume: %v", err)
			}
			if st, err := b.sb.Status(b.context(t)); st != core.StatusRunning || err != nil {
				t.Errorf("status %v, %v", st, err)
			}
			var gap float64
			b.wait(t, "it ticks again", func() bool {
				var n int
				n, gap = longestGap(t, ticks()[before-1:])
				return gap >= 0.9 || n > 20
			})
			if gap < 0.9 {
				t.Errorf("its clock stood still for %gs at most, the pause was 1s", gap)
			}
		}
	}},
	{name: "a_paused_sandbox_can_not_be_stopped", absent: func(c Config) bool { return c.NoPause }, run: func(t *testing.T, b *box) {
		b.start(t)
		m := marker()
		b.ok(t, "sleep "+m+" >/dev/null 2>&1 </dev/null &")
		if err := b.sb.Pause(b.context(t)); err != nil {
			t.Fatalf("pause: %v", err)
		}
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Fatalf("stop: %v", err)
		}
		if !b.cfg.RemoteProcesses && len(hostProcesses("cmdline", "sleep\x00"+m)) > 0 {
			t.Error("its process is left")
		}
	}},
	{name: "a_spec_that_can_not_be_served_is_served_in_part", run: func(t *testing.T, b *box) {
		for _, spec := range []core.Spec{{TTL: -1}, {Workdir: "relative"}, {Env: map[string]string{"A=B": ""}}, {Ports: []int{0}}, {Files: []core.File{{}}}} {
			sb := core.NewSandbox(b.provider, spec)
			wantKind(t, sb.Start(b.context(t)), core.KindInvalid)
		}
	}},
}

// wantLeftovers waits until nothing more exists than before.
func (b *box) wantLeftovers(t testing.TB, before []string) {
	t.Helper()
	var more []string
	end := time.Now().Add(b.cfg.deadline())
	for {
		more = slices.DeleteFunc(b.cfg.Leftovers(t), func(s string) bool { return slices.Contains(before, s) })
		if len(more) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("left behind: %v", more)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// longestGap is the longest time in seconds between two ticks that follow each other.
func longestGap(t testing.TB, ticks []string) (n int, gap float64) {
	t.Helper()
	last := 0.0
	for i, tick := range ticks {
		at, err := strconv.ParseFloat(tick, 64)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			gap = max(gap, at-last)
		}
		last = at
	}
	return len(ticks), gap
}
