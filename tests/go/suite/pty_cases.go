package suite

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func noTerminals(c Config) bool { return c.NoTerminals }

// terminal opens a session, which ends with the case.
func (b *box) terminal(t testing.TB, spec core.PTYSpec) core.PTYSession {
	t.Helper()
	s, err := b.sb.OpenPTY(b.context(t), spec)
	if err != nil {
		t.Fatalf("open a terminal: %v", err)
	}
	b.closeAfter(t, s)
	return s
}

func (b *box) attach(t testing.TB, id string, since int64) core.PTYSession {
	t.Helper()
	s, err := b.sb.AttachPTY(b.context(t), id, true, since)
	if err != nil {
		t.Fatalf("attach to session %s: %v", id, err)
	}
	b.closeAfter(t, s)
	return s
}

func (b *box) closeAfter(t testing.TB, s core.PTYSession) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), b.cfg.deadline())
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Errorf("close a terminal: %v", err)
		}
	})
}

// typed writes to a session.
func (b *box) typed(t testing.TB, s core.PTYSession, text string) {
	t.Helper()
	if err := s.Write(b.context(t), []byte(text)); err != nil {
		t.Fatalf("write %q: %v", text, err)
	}
}

// seen reads until a text was seen.
func (b *box) seen(t testing.TB, s core.PTYSession, want string) []byte {
	t.Helper()
	var got []byte
	for !bytes.Contains(got, []byte(want)) {
		p, err := s.Read(b.context(t))
		if err != nil {
			t.Fatalf("read: %v; %q was not seen in %s", err, want, short(string(got)))
		}
		got = append(got, p...)
	}
	return got
}

// drained reads to the end and gives the exit code too.
func (b *box) drained(t testing.TB, s core.PTYSession) (string, int) {
	t.Helper()
	var got []byte
	for {
		p, err := s.Read(b.context(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("read: %v after %d bytes", err, len(got))
		}
		got = append(got, p...)
	}
	code, err := s.WaitExit(b.context(t))
	if err != nil {
		t.Fatalf("wait for the exit: %v", err)
	}
	return string(got), code
}

// shellRun types a command and gives what it printed.
func (b *box) shellRun(t testing.TB, s core.PTYSession, command string) (string, int) {
	t.Helper()
	r, err := s.Exec(b.context(t), command)
	if err != nil || !r.Known {
		t.Fatalf("type %s: %v, %+v", short(command), err, r)
	}
	return strings.ReplaceAll(string(r.Stdout), "\r\n", "\n"), r.Code
}

func wantText(t testing.TB, got, want string) {
	t.Helper()
	if got != want {
		t.Fatalf("got %s, want %s", short(got), short(want))
	}
}

// failure reads until the session fails, and gives the error.
func (b *box) failure(t testing.TB, s core.PTYSession) error {
	t.Helper()
	for {
		if _, err := s.Read(b.context(t)); err != nil {
			return err
		}
	}
}

var terminalCases = []testCase{
	{name: "echo_and_prompt_pass_for_output", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{})
		out, _ := b.shellRun(t, s, "echo one; echo two")
		wantText(t, out, "one\ntwo\n")
		b.shellRun(t, s, "cd /; X=5")
		out, code := b.shellRun(t, s, "pwd; echo $X; (exit 7)")
		wantText(t, out, "/\n5\n")
		if code != 7 {
			t.Fatalf("code %d", code)
		}
	}},
	{name: "output_that_looks_like_a_marker_ends_the_command", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{})
		out, code := b.shellRun(t, s, "printf 'NGSdeadbeef0123:0\\n'; printf 'x:9\\n'; (exit 3)")
		wantText(t, out, "NGSdeadbeef0123:0\nx:9\n")
		if code != 3 {
			t.Fatalf("code %d", code)
		}
		out, code = b.shellRun(t, s, "echo a\necho b\n(exit 2)")
		wantText(t, out, "a\nb\n")
		if code != 2 {
			t.Fatalf("code %d", code)
		}
	}},
	{name: "a_program_starts_in_another_size", absent: noTerminals, run: func(t *testing.T, b *box) {
		for range 4 {
			out, _ := b.drained(t, b.terminal(t, core.PTYSpec{Command: "stty size", Rows: 50, Cols: 121}))
			wantText(t, out, "50 121\r\n")
		}
	}},
	{name: "a_session_ignores_its_directory_and_variables", absent: noTerminals, run: func(t *testing.T, b *box) {
		out, _ := b.drained(t, b.terminal(t, core.PTYSpec{Command: "pwd; echo $V_PTY", Cwd: "/tmp", Env: map[string]string{"V_PTY": "a  b"}}))
		wantText(t, out, "/tmp\r\na b\r\n")
		if b.spec.Workdir != "" {
			out, _ = b.drained(t, b.terminal(t, core.PTYSpec{Command: "pwd"}))
			wantText(t, out, b.spec.Workdir+"\r\n")
		}
	}},
	{name: "an_interrupt_does_not_reach_the_foreground_or_ends_the_shell", absent: noTerminals, run: func(t *testing.T, b *box) {
		s, m := b.terminal(t, core.PTYSpec{}), marker()
		b.typed(t, s, "sleep "+m+"\n")
		b.waitSleepers(t, m, 1)
		b.typed(t, s, "\x03")
		b.waitSleepers(t, m, 0)
		b.typed(t, s, "echo al''ive\n")
		b.seen(t, s, "alive")
	}},
	{name: "a_signal_does_not_reach_the_process", absent: noTerminals, run: func(t *testing.T, b *box) {
		for name, want := range map[string]int{"SIGINT": 130, "SIGTERM": 143, "SIGKILL": 137} {
			s := b.terminal(t, core.PTYSpec{Command: "echo go; exec sleep 1000"})
			b.seen(t, s, "go")
			if err := s.Signal(b.context(t), name); err != nil {
				t.Fatal(err)
			}
			_, code := b.drained(t, s)
			if code != want && (!b.cfg.NoTerminalSignalCodes || code >= 0) {
				t.Errorf("%s: code %d, want %d", name, code, want)
			}
		}
	}},
	{name: "a_long_line_is_cut", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{})
		out, _ := b.shellRun(t, s, "V="+strings.Repeat("x", 6000)+"; echo ${#V}")
		wantText(t, out, "6000\n")
		out, _ = b.shellRun(t, s, "echo after")
		wantText(t, out, "after\n")
	}},
	{name: "stdout_and_stderr_mix_without_a_terminal", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{Command: "echo out; echo err >&2; exit 4", NoTerminal: true})
		if s.Mode() != "pipe" {
			t.Errorf("mode %q", s.Mode())
		}
		out, code := b.drained(t, s)
		wantText(t, out, "out\n")
		if code != 4 {
			t.Errorf("code %d", code)
		}
		p, err := s.ReadStderr(b.context(t))
		if err != nil || string(p) != "err\n" {
			t.Errorf("stderr %q, %v", p, err)
		}
	}},
	{name: "writes_and_resizes_at_once_lose_input", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{Command: "stty raw -echo; echo ready; head -c 3000 | wc -c"})
		b.seen(t, s, "ready")
		var wg sync.WaitGroup
		for i := range 300 {
			wg.Go(func() {
				if err := s.Write(b.context(t), []byte("abcdefghij")); err != nil {
					t.Errorf("write: %v", err)
				}
			})
			if i%6 == 0 {
				wg.Go(func() {
					if err := s.Resize(b.context(t), 20+i%20, 80); err != nil {
						t.Errorf("resize: %v", err)
					}
				})
			}
		}
		wg.Wait()
		if out, _ := b.drained(t, s); !strings.Contains(out, "3000") {
			t.Errorf("got %s", short(out))
		}
	}},
	{name: "the_last_output_is_lost", absent: noTerminals, run: func(t *testing.T, b *box) {
		for _, pipes := range []bool{false, true} {
			for range 6 {
				s := b.terminal(t, core.PTYSpec{Command: "head -c 200000 /dev/zero | tr '\\0' z; printf END; exit 3", NoTerminal: pipes})
				if out, code := b.drained(t, s); code != 3 || len(out) != 200_003 || !strings.HasSuffix(out, "END") {
					t.Fatalf("%d bytes, code %d", len(out), code)
				}
			}
		}
	}},
	{name: "a_closed_session_leaves_processes", absent: noTerminals, run: func(t *testing.T, b *box) {
		m := marker()
		s := b.terminal(t, core.PTYSpec{Command: "sleep " + m + " & setsid sleep " + m + " & sleep " + m})
		b.waitSleepers(t, m, 3)
		if err := s.Close(b.context(t)); err != nil {
			t.Fatal(err)
		}
		if n := b.sleepers(t, m); n != 0 {
			t.Errorf("%d processes are left", n)
		}
	}},
	{name: "a_detached_session_loses_or_doubles_output", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{Command: "stty -onlcr -echo; i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo n$i; done; read x; echo end"})
		got := b.seen(t, s, "n500\n")
		if err := s.Detach(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Read(b.context(t)); core.KindOf(err) != core.KindPTY {
			t.Errorf("a detached session reads: %v", err)
		}
		if err := s.Reattach(b.context(t)); err != nil {
			t.Fatal(err)
		}
		b.typed(t, s, "\n")
		rest, _ := b.drained(t, s)
		wantText(t, string(got)+rest, countUp(3000)+"end\n")
	}},
	{name: "another_who_attaches_misses_output_or_gets_it_twice", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{Command: "stty -onlcr -echo; i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo n$i; done; read x; echo end"})
		got := b.seen(t, s, "n500\n")
		other := b.attach(t, s.SessionID(), int64(len(got)))
		wantKind(t, b.failure(t, s), core.KindPTY)
		b.typed(t, other, "\n")
		rest, _ := b.drained(t, other)
		wantText(t, string(got)+rest, countUp(3000)+"end\n")
	}},
	{name: "two_hold_one_session", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{})
		_, err := b.sb.AttachPTY(b.context(t), s.SessionID(), false, 0)
		wantKind(t, err, core.KindPTY)
		other := b.attach(t, s.SessionID(), 0)
		wantKind(t, b.failure(t, s), core.KindPTY)
		b.typed(t, other, "echo se''cond\n")
		b.seen(t, other, "second")
		_, err = b.sb.AttachPTY(b.context(t), "no-such-session", true, 0)
		wantKind(t, err, core.KindPTY)
	}},
	{name: "an_exit_that_nobody_saw_is_forgotten", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{Command: "read x; printf late; exit 5"})
		b.typed(t, s, "\n")
		if err := s.Detach(); err == nil {
			if err := s.Reattach(b.context(t)); err != nil {
				t.Fatal(err)
			}
		}
		if out, code := b.drained(t, s); code != 5 || !strings.HasSuffix(out, "late") {
			t.Errorf("%q, code %d", out, code)
		}
	}},
	{name: "a_command_that_runs_detached_loses_output", absent: noTerminals, run: func(t *testing.T, b *box) {
		s := b.terminal(t, core.PTYSpec{})
		r, err := s.RunDetached(b.context(t), "i=0; while [ $i -lt 5 ]; do i=$((i+1)); echo n$i; sleep 0.5; done; (exit 9)", 200*time.Millisecond)
		if err != nil || !r.Known || r.Code != 9 {
			t.Fatalf("%v, %+v", err, r)
		}
		wantText(t, strings.ReplaceAll(string(r.Stdout), "\r\n", "\n"), countUp(5))
	}},
	{name: "a_storm_of_attaches_loses_or_doubles_output", absent: func(c Config) bool { return c.NoTerminals || c.NoLateAttach }, run: func(t *testing.T, b *box) {
		const lines, moves = 16 << 10, 20
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		want := sha256.New()
		for i := range lines {
			fmt.Fprintf(want, "%063d\n", i)
		}
		var wg sync.WaitGroup
		for i := range uint64(4) {
			s := b.terminal(t, core.PTYSpec{NoTerminal: i%2 == 1,
				Command: fmt.Sprintf(`stty -onlcr 2>/dev/null; awk 'BEGIN { for (i = 0; i < %d; i++) { printf "%%063d\n", i; if (i %% 256 == 255) { fflush(); system("sleep 0.012") } } }'`, lines)})
			wg.Go(func() {
				got, n := b.storm(t, s, rand.New(rand.NewPCG(seed, i)), moves)
				if n != 64*lines || [32]byte(got) != [32]byte(want.Sum(nil)) {
					t.Errorf("session %d: %d bytes instead of %d, or others", i, n, 64*lines)
				}
			})
		}
		wg.Wait()
	}},
}

// storm moves a session about while its output is read; it gives the output's hash and length.
func (b *box) storm(t *testing.T, s core.PTYSession, rnd *rand.Rand, moves int) ([]byte, int) {
	sum, total := sha256.New(), 0
	fail := func(what string, err error) ([]byte, int) {
		t.Errorf("%s after %d bytes: %v", what, total, err)
		return make([]byte, 32), total
	}
	for {
		p, err := s.Read(b.context(t))
		if errors.Is(err, io.EOF) {
			return sum.Sum(nil), total
		}
		if err != nil {
			return fail("read", err)
		}
		sum.Write(p)
		total += len(p)
		if moves == 0 || rnd.IntN(2) > 0 {
			continue
		}
		moves--
		switch rnd.IntN(3) {
		case 0:
			if err := s.Detach(); err != nil {
				if s.Closed() {
					continue // its process has ended
				}
				return fail("detach", err)
			}
			if err := s.Reattach(b.context(t)); err != nil {
				return fail("reattach", err)
			}
		case 1:
			if s.Suspend() {
				if err := s.Reattach(b.context(t)); err != nil {
					return fail("reattach", err)
				}
			}
		case 2:
			old := s
			if s, err = b.sb.AttachPTY(b.context(t), old.SessionID(), true, int64(total)); err != nil {
				return fail("attach", err)
			}
			b.closeAfter(t, s)
			for err == nil {
				_, err = old.Read(b.context(t))
			}
			if core.KindOf(err) != core.KindPTY && !errors.Is(err, io.EOF) { // it may have seen the exit just before
				return fail("read by the evicted holder", err)
			}
		}
	}
}

func countUp(n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "n%d\n", i+1)
	}
	return s.String()
}

var terminalLifeCases = []testCase{
	{name: "a_pause_loses_a_sessions_output", absent: func(c Config) bool { return c.NoTerminals || c.NoPause || c.ShortReplay }, run: func(t *testing.T, b *box) {
		b.start(t)
		s := b.terminal(t, core.PTYSpec{Command: "head -c 20000000 /dev/zero | tr '\\0' x; printf END", NoTerminal: true})
		total := 0
		for total < 2_000_000 {
			p, err := s.Read(b.context(t))
			if err != nil {
				t.Fatal(err)
			}
			total += len(p)
		}
		for range 2 {
			if err := b.sb.Pause(b.context(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Read(b.context(t)); core.KindOf(err) != core.KindPTY {
				t.Errorf("a session of a paused sandbox reads: %v", err)
			}
			if err := b.sb.Resume(b.context(t)); err != nil {
				t.Fatal(err)
			}
		}
		if out, _ := b.drained(t, s); total+len(out) != 20_000_003 {
			t.Errorf("%d bytes", total+len(out))
		}
	}},
	{name: "a_session_of_a_stopped_sandbox_hangs_or_reads_an_end", absent: noTerminals, run: func(t *testing.T, b *box) {
		b.start(t)
		s := b.terminal(t, core.PTYSpec{})
		failed := make(chan error, 1)
		go func() {
			for {
				if _, err := s.Read(context.Background()); err != nil {
					failed <- err
					return
				}
			}
		}()
		if err := b.sb.Stop(b.context(t)); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-failed:
			wantKind(t, err, core.KindPTY)
		case <-b.context(t).Done():
			t.Fatal("the reader still waits")
		}
		if !s.Closed() {
			t.Error("the session is not closed")
		}
		_, err := b.sb.OpenPTY(b.context(t), core.PTYSpec{})
		wantKind(t, err, core.KindClosed)
	}},
	{name: "a_session_can_not_be_taken_up_by_another_process", absent: func(c Config) bool { return c.NoTerminals || c.NoConnect }, run: func(t *testing.T, b *box) {
		b.start(t)
		s := b.terminal(t, core.PTYSpec{Command: "stty -echo; echo one; read x; echo two-$x"})
		b.seen(t, s, "one\r\n")
		descriptor, err := b.sb.Serialize(b.context(t), "")
		if err != nil {
			t.Fatal(err)
		}
		p := b.cfg.New(t)
		defer p.Close(b.context(t))
		second, err := core.Connect(b.context(t), p, descriptor)
		if err != nil {
			t.Fatal(err)
		}
		taken, err := second.AttachPTY(b.context(t), s.SessionID(), true, 0)
		if err != nil {
			t.Fatal(err)
		}
		b.seen(t, taken, "one\r\n")
		b.typed(t, taken, "here\n")
		out, _ := b.drained(t, taken)
		wantText(t, out, "two-here\r\n")
		if err := taken.Close(b.context(t)); err != nil {
			t.Error(err)
		}
		if err := second.Disconnect(); err != nil {
			t.Error(err)
		}
	}},
}
