package suite

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func noTreeKill(c Config) bool { return c.NoTreeKill }

// endsAtTimeout runs a command that would not end, with MARK replaced by a
// marker, and wants it to be gone after its timeout.
func endsAtTimeout(command string) func(t *testing.T, b *box) {
	return func(t *testing.T, b *box) {
		m := marker()
		r := b.run(t, core.ExecRequest{Command: strings.ReplaceAll(command, "MARK", m), Timeout: time.Second})
		r.wantTimeout(t)
		if r.took > b.cfg.times(8*time.Second) {
			t.Errorf("took %s", r.took)
		}
		b.waitSleepers(t, m, 0)
	}
}

var timeoutCases = []testCase{
	{name: "only_the_client_of_a_late_command_ends", run: endsAtTimeout("sleep MARK")},
	{name: "only_the_shell_of_a_late_command_ends", run: endsAtTimeout("sleep MARK & sleep MARK; wait")},
	{name: "a_grandchild_outlives_the_timeout", run: endsAtTimeout("sh -c 'sh -c \"sleep MARK; true\"; true'; true")},
	{name: "a_child_in_its_own_session_outlives_the_timeout", absent: noTreeKill, run: endsAtTimeout("setsid sh -c 'sleep MARK & sleep MARK' & sleep MARK")},
	{name: "an_orphan_outlives_the_timeout", absent: noTreeKill, run: endsAtTimeout("(setsid sh -c 'setsid sleep MARK >/dev/null 2>&1 </dev/null &' &) ; sleep MARK")},
	{name: "what_ignores_polite_signals_outlives_the_timeout", run: endsAtTimeout("trap '' TERM INT HUP; sleep MARK; sleep MARK")},
	{name: "what_is_stopped_outlives_the_timeout", run: endsAtTimeout("sleep MARK & kill -STOP $!; kill -STOP $$")},
	{name: "what_keeps_forking_outlives_the_timeout", absent: noTreeKill, run: endsAtTimeout("while :; do sleep MARK & sleep 0.02; done")},
	{name: "what_was_printed_before_the_timeout_is_lost", run: func(t *testing.T, b *box) {
		r := b.run(t, core.ExecRequest{Command: "echo out; echo err >&2; sleep " + marker(), Timeout: time.Second})
		r.wantTimeout(t)
		if !r.printed("out\n", "err\n") {
			t.Fatalf("got %s", r)
		}
	}},
	{name: "endless_output_holds_the_timeout_back", run: func(t *testing.T, b *box) {
		c := core.NewCollector(1 << 20)
		defer c.Close()
		began := time.Now()
		res, err := b.sb.Exec(b.context(t), core.ExecRequest{Command: "yes", Timeout: time.Second}, c)
		if err != nil || res.ErrorType != core.ErrorTypeTimeout {
			t.Fatalf("got %+v, %v", res, err)
		}
		if took := time.Since(began); took > b.cfg.times(8*time.Second) {
			t.Errorf("took %s", took)
		}
		if text := c.Output(core.Stdout).String(); !strings.HasPrefix(text, "y\ny\n") {
			t.Fatalf("stdout is %s", short(text))
		}
	}},
	{name: "a_reader_that_stands_still_holds_the_timeout_back", absent: func(c Config) bool { return c.NoStreaming || c.NoBackPressure }, run: func(t *testing.T, b *box) {
		m, release := marker(), make(chan struct{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.sb.Exec(b.context(t), core.ExecRequest{Command: "sleep " + m + " & yes", Timeout: time.Second},
				sinkFunc(func(core.Stream, []byte) error { <-release; return nil }))
		}()
		// The command ends in the sandbox although nobody here takes what it printed.
		time.Sleep(time.Second)
		b.waitSleepers(t, m, 0)
		close(release)
		<-done
	}},
	{name: "a_daemon_ends_with_the_timeout_of_a_later_command", run: func(t *testing.T, b *box) {
		m := marker()
		b.ok(t, "sleep "+m+" >/dev/null 2>&1 </dev/null &")
		b.run(t, core.ExecRequest{Command: "sleep " + marker(), Timeout: time.Second}).wantTimeout(t)
		b.waitSleepers(t, m, 1)
		b.endSleepers(t, m)
	}},
	{name: "the_sandbox_is_unusable_after_a_timeout", run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "sleep " + marker(), Timeout: 200 * time.Millisecond}).wantTimeout(t)
		b.sh(t, "echo ok").wantStdout(t, "ok\n")
	}},
	{name: "a_timeout_ends_a_command_that_has_none", run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "sleep 0.2; echo ok", Timeout: core.Forever}).wantStdout(t, "ok\n")
	}},
	{name: "a_cancelled_command_goes_on", run: func(t *testing.T, b *box) {
		m := marker()
		ctx, cancel := context.WithCancel(b.context(t))
		done := make(chan error, 1)
		go func() {
			_, err := b.try(ctx, core.ExecRequest{Command: "sleep " + m + " & sleep " + m + "; wait"})
			done <- err
		}()
		b.waitSleepers(t, m, 2)
		cancel()
		select {
		case err := <-done:
			if !core.IsCanceled(err) {
				t.Errorf("got error %v, want one that says canceled", err)
			}
		case <-time.After(b.cfg.times(8 * time.Second)):
			t.Error("the cancelled call does not return")
		}
		b.waitSleepers(t, m, 0)
	}},
	{name: "a_cancelled_commands_own_session_goes_on", absent: noTreeKill, run: func(t *testing.T, b *box) {
		m := marker()
		ctx, cancel := context.WithCancel(b.context(t))
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = b.try(ctx, core.ExecRequest{Command: "(setsid sleep " + m + " >/dev/null 2>&1 </dev/null &); trap '' TERM; sleep " + m})
		}()
		b.waitSleepers(t, m, 2)
		cancel()
		<-done
		b.waitSleepers(t, m, 0)
	}},
	{name: "a_call_that_was_cancelled_before_it_began_runs", run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.try(ctx, core.ExecRequest{Command: "touch " + dir + "/ran"}); !core.IsCanceled(err) {
			t.Errorf("got error %v, want one that says canceled", err)
		}
		if b.sh(t, "test -e "+dir+"/ran").ExitCode != 1 {
			t.Error("the command ran")
		}
	}},
	{name: "the_callers_own_deadline_is_overlooked", run: func(t *testing.T, b *box) {
		m := marker()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r, err := b.try(ctx, core.ExecRequest{Command: "sleep " + m}); err == nil {
			t.Errorf("got %s, want an error", r)
		}
		b.waitSleepers(t, m, 0)
	}},
	{name: "control_calls_starve_behind_long_commands", run: func(t *testing.T, b *box) {
		m := marker()
		ctx, cancel := context.WithCancel(b.context(t))
		const n = 40
		done := make(chan struct{}, n)
		defer cancel()
		for range n {
			go func() {
				_, _ = b.try(ctx, core.ExecRequest{Command: "sleep " + m, Timeout: 6 * b.cfg.deadline()})
				done <- struct{}{}
			}()
		}
		b.waitSleepers(t, m, n)
		began := time.Now()
		if st, err := b.sb.Status(ctx); err != nil || st != core.StatusRunning {
			t.Errorf("status %v, %v", st, err)
		}
		b.sh(t, "echo ok").wantStdout(t, "ok\n")
		if took := time.Since(began); took > b.cfg.times(5*time.Second) {
			t.Errorf("took %s", took)
		}
		cancel()
		for range n {
			<-done
		}
		b.waitSleepers(t, m, 0)
	}},
}
