package suite

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func noUsers(c Config) bool { return c.NoUsers }
func noArgv(c Config) bool  { return c.NoArgv }

var execCases = []testCase{
	{name: "a_codes_meaning_is_guessed", run: func(t *testing.T, b *box) {
		for _, code := range []int{0, 1, 2, 124, 125, 126, 127, 130, 137, 143, 255} {
			b.sh(t, fmt.Sprintf("exit %d", code)).wantCode(t, code)
		}
	}},
	{name: "death_by_a_signal_has_no_usable_code", absent: func(c Config) bool { return c.NoSignalCodes }, run: func(t *testing.T, b *box) {
		for signal, code := range map[string]int{"KILL": 137, "TERM": 143, "SEGV": 139, "INT": 130} {
			b.sh(t, fmt.Sprintf("kill -%s $$; sleep 5", signal)).wantCode(t, code)
		}
	}},
	{name: "a_missing_program_is_a_runtime_failure", run: func(t *testing.T, b *box) {
		b.sh(t, "no-such-command-zz").wantCode(t, 127)
		b.sh(t, "/etc/passwd").wantCode(t, 126)
	}},
	{name: "a_missing_program_without_a_shell_is_a_runtime_failure", absent: noArgv, run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Argv: []string{"no-such-command-zz"}}).wantCode(t, 127)
		b.run(t, core.ExecRequest{Argv: []string{"/etc/passwd"}}).wantCode(t, 126)
	}},
	{name: "stderr_text_decides_what_a_failure_is", run: func(t *testing.T, b *box) {
		for _, text := range []string{"nginx is not running", "Error response from daemon: no", "No such container: web", "command timed out after 1s"} {
			r := b.sh(t, "echo "+quote(text)+" >&2; exit 3")
			r.wantCode(t, 3)
			if !r.printed("", text+"\n") {
				t.Fatalf("got %s", r)
			}
		}
	}},
	{name: "a_command_that_begins_with_a_dash_is_an_option", run: func(t *testing.T, b *box) {
		for _, command := range []string{"--help", "-c 'echo taken-as-option'", "--version"} {
			r := b.sh(t, command)
			r.wantCode(t, 127)
			if strings.Contains(r.stdout, "taken-as-option") || r.stdout != "" && !b.cfg.Merged {
				t.Fatalf("%s printed %s", command, short(r.stdout))
			}
		}
	}},
	{name: "the_command_is_quoted_again", run: func(t *testing.T, b *box) {
		body := "single ' double \" tick ` dollar $HOME $(id) back \\ \\n slash ☕ tab\tpercent %s star *\n\n  end\n"
		b.sh(t, "cat <<'EOT'\n"+body+"EOT\n").wantStdout(t, body)
		b.sh(t, "printf '%s' "+quote(body)).wantStdout(t, body)
		b.sh(t, "echo one\necho two # a comment\n\n").wantStdout(t, "one\ntwo\n")
	}},
	{name: "a_command_is_limited_to_one_argument", run: func(t *testing.T, b *box) {
		b.sh(t, ": '"+strings.Repeat("x", 200_000)+"'; echo ok").wantStdout(t, "ok\n")
	}},
	{name: "an_argv_passes_through_a_shell", absent: noArgv, run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Argv: []string{"printf", "<%s>", "a b", "$HOME", "*", "", "'", "-n", "☕\n"}}).
			wantStdout(t, "<a b><$HOME><*><><'><-n><☕\n>")
	}},
	{name: "an_empty_command_hangs", run: func(t *testing.T, b *box) {
		b.sh(t, "").wantStdout(t, "")
		b.sh(t, "  \n").wantStdout(t, "")
	}},
	{name: "bytes_of_a_value_are_changed_on_the_way", run: func(t *testing.T, b *box) {
		env := map[string]string{
			"V_LINES": "one\ntwo\n", "V_QUOTES": `'"` + "`", "V_DOLLAR": "$HOME $(id)", "V_UTF": "☕", "V_BLANKS": "  x  ",
			"V_EMPTY": "", "V_EQUALS": "a=b=c", "V_DASH": "--env",
		}
		if !b.cfg.TextOnly {
			env["V_BYTES"] = "\xff\xfe"
		}
		for name, value := range env {
			b.run(t, core.ExecRequest{Command: `printf '<%s>' "$` + name + `"; [ "${` + name + `+set}" = set ]`, Env: env}).wantStdout(t, "<"+value+">")
		}
	}},
	{name: "a_calls_variable_outlives_the_call", run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "echo $V_ONCE", Env: map[string]string{"V_ONCE": "here"}}).wantStdout(t, "here\n")
		b.sh(t, "echo ${V_ONCE-gone}").wantStdout(t, "gone\n")
	}},
	{name: "one_value_wins_over_the_other_by_chance", run: func(t *testing.T, b *box) {
		for i := range 20 {
			want := fmt.Sprintf("/bin:/usr/bin:/%d", i)
			b.run(t, core.ExecRequest{Command: `echo "$PATH"`, Env: map[string]string{"PATH": want}}).wantStdout(t, want+"\n")
		}
	}},
	{name: "a_secret_shows_in_the_process_list", absent: func(c Config) bool { return c.RemoteProcesses }, run: func(t *testing.T, b *box) {
		secret, m := "value-"+marker(), marker()
		ctx, cancel := context.WithCancel(b.context(t))
		done := make(chan struct{})
		go func() {
			defer close(done)
			// Ended by the cancel; its result says nothing.
			_, _ = b.try(ctx, core.ExecRequest{Command: "sleep " + m + "; true", Env: map[string]string{"V_SECRET": secret}})
		}()
		defer func() { cancel(); <-done }()
		b.wait(t, "the command runs", func() bool { return len(hostProcesses("cmdline", "sleep\x00"+m)) > 0 })
		if pids := hostProcesses("cmdline", secret); len(pids) > 0 {
			t.Errorf("the value is on the command line of %v", pids)
		}
		if len(hostProcesses("environ", secret)) == 0 {
			t.Error("the value is not in the command's environment")
		}
	}},
	{name: "a_command_runs_in_a_directory_that_is_not_the_one_asked_for", run: func(t *testing.T, b *box) {
		dir := b.scratch(t) + "/with blank's"
		b.ok(t, "mkdir "+quote(dir))
		b.run(t, core.ExecRequest{Command: "pwd", Cwd: dir}).wantStdout(t, dir+"\n")
	}},
	{name: "a_missing_directory_is_the_commands_own_failure", run: func(t *testing.T, b *box) {
		r, err := b.try(b.context(t), core.ExecRequest{Command: "echo ran", Cwd: "/no/such/dir"})
		said := r.Reason + r.stderr
		if err != nil {
			said = err.Error()
		} else if r.ErrorType == "" {
			t.Fatalf("got %s, want an error", r)
		}
		if r.stdout != "" || !strings.Contains(said, "/no/such/dir") {
			t.Fatalf("got %s and %v: the directory is not named", r, err)
		}
	}},
	{name: "a_users_number_needs_an_entry_in_passwd", absent: noUsers, run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "id -u", User: "12345"}).wantStdout(t, "12345\n")
		if !b.cfg.NoHome {
			b.run(t, core.ExecRequest{Command: "cd; echo home=$HOME", User: "12345"}).wantStdout(t, "home=/\n")
		}
		b.run(t, core.ExecRequest{Command: "id -u; id -g", User: "12345:6789"}).wantStdout(t, "12345\n6789\n")
	}},
	{name: "another_user_is_ignored", absent: noUsers, run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "id -u", User: "nobody"}).wantStdout(t, "65534\n")
		b.sh(t, "id -u").wantStdout(t, "0\n")
	}},
	{name: "an_unknown_user_becomes_the_default_one", absent: noUsers, run: func(t *testing.T, b *box) {
		r, err := b.try(b.context(t), core.ExecRequest{Command: "id -u", User: "no-such-user-zz"})
		said := r.Reason + r.stderr
		if err != nil {
			said = err.Error()
		} else if r.ErrorType == "" && (!b.cfg.LateUsers || r.ExitCode == 0) {
			t.Fatalf("got %s, want an error", r)
		}
		if b.cfg.Merged {
			said += r.stdout
		}
		if r.stdout != "" && !b.cfg.Merged || !strings.Contains(said, "no-such-user-zz") {
			t.Fatalf("got %s and %v: the user is not named", r, err)
		}
	}},
	{name: "another_user_is_ignored_where_there_is_only_one", absent: func(c Config) bool { return !c.NoUsers }, run: func(t *testing.T, b *box) {
		r, err := b.try(b.context(t), core.ExecRequest{Command: "echo ran", User: "no-such-user-zz"})
		wantKind(t, err, core.KindInvalid)
		if r.stdout != "" {
			t.Fatal("the command ran")
		}
	}},
	{name: "a_request_that_can_not_be_run_is_run_in_part", run: func(t *testing.T, b *box) {
		for name, req := range map[string]core.ExecRequest{
			"NUL in the command":   {Command: "echo a\x00b"},
			"both forms":           {Command: "echo", Argv: []string{"echo"}},
			"bad variable":         {Command: "echo", Env: map[string]string{"A=B": "c"}},
			"NUL in an argument":   {Argv: []string{"echo", "\x00"}},
			"NUL in the directory": {Command: "echo", Cwd: "/\x00"},
		} {
			r, err := b.try(b.context(t), req)
			if core.KindOf(err) != core.KindInvalid || r.stdout != "" {
				t.Errorf("%s: got %s and %v", name, r, err)
			}
		}
	}},
	{name: "our_descriptors_reach_the_command", run: func(t *testing.T, b *box) {
		b.sh(t, "ls /proc/$$/fd; true").wantStdout(t, "0\n1\n2\n")
	}},
	{name: "signals_are_ignored_or_blocked_at_the_start", run: func(t *testing.T, b *box) {
		b.sh(t, "grep -E '^Sig(Ign|Blk)' /proc/self/status | tr -d '\\t'").wantStdout(t, "SigBlk:0000000000000000\nSigIgn:0000000000000000\n")
		if r := b.sh(t, "(yes; echo $? >&2) | head -n 1"); !r.printed("y\n", "141\n") {
			t.Fatalf("got %s", r)
		}
	}},
	{name: "answers_of_many_commands_are_mixed_up", run: func(t *testing.T, b *box) {
		var wg sync.WaitGroup
		for i := range b.cfg.MaxInFlight {
			wg.Go(func() {
				r, err := b.try(b.context(t), core.ExecRequest{Command: fmt.Sprintf("echo %d; exit %d", i, i%100), Timeout: 6 * b.cfg.deadline()})
				if err != nil || !r.printed(fmt.Sprintf("%d\n", i), "") || r.ExitCode != i%100 || r.ErrorType != "" {
					t.Errorf("command %d: got %s and %v", i, r, err)
				}
			})
		}
		wg.Wait()
	}},
}
