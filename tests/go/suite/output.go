package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

var outputCases = []testCase{
	{name: "bytes_are_taken_for_text", absent: func(c Config) bool { return c.AsLines }, run: func(t *testing.T, b *box) {
		var octal, want strings.Builder
		for i := range 256 {
			fmt.Fprintf(&octal, `\%03o`, i)
			want.WriteByte(byte(i))
		}
		r := b.sh(t, "printf '"+octal.String()+"'; printf '"+octal.String()+"' >&2")
		r.wantCode(t, 0)
		if !r.printed(want.String(), want.String()) {
			t.Fatalf("got %s", r)
		}
	}},
	{name: "the_end_of_an_output_is_lost", run: func(t *testing.T, b *box) {
		for _, n := range []int{0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, 1<<20 + 1} {
			r := b.sh(t, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; printf END", n))
			r.wantCode(t, 0)
			if len(r.stdout) != n+3 || !strings.HasSuffix(r.stdout, "END") {
				t.Fatalf("%d bytes of %d arrived: %s", len(r.stdout), n+3, short(r.stdout))
			}
		}
	}},
	{name: "the_end_of_a_quick_commands_output_is_lost", run: func(t *testing.T, b *box) {
		for i := range 30 {
			r := b.sh(t, fmt.Sprintf("printf out%d; printf err%d >&2; exit 3", i, i))
			if r.ExitCode != 3 || !r.printed(fmt.Sprintf("out%d", i), fmt.Sprintf("err%d", i)) {
				t.Fatalf("got %s", r)
			}
		}
	}},
	{name: "a_flood_on_one_stream_blocks_the_other", run: func(t *testing.T, b *box) {
		r := b.sh(t, "head -c 2097152 /dev/zero | tr '\\0' e >&2; echo ok; head -c 2097152 /dev/zero | tr '\\0' o")
		r.wantCode(t, 0)
		first, second := strings.Repeat("e", 2<<20), "ok\n"+strings.Repeat("o", 2<<20)
		if b.cfg.Merged && r.stdout != first+second || !b.cfg.Merged && !r.printed(second, first) {
			t.Fatalf("got %s", r)
		}
	}},
	{name: "a_limit_keeps_only_the_beginning", run: func(t *testing.T, b *box) {
		c := core.NewCollector(1000)
		defer c.Close()
		res, err := b.sb.Exec(b.context(t), core.ExecRequest{
			Command: "echo FIRST; head -c 1048576 /dev/zero | tr '\\0' x; echo LAST", Timeout: b.cfg.deadline(),
		}, c)
		if err != nil || res.ExitCode != 0 {
			t.Fatalf("got %+v, %v", res, err)
		}
		out := c.Output(core.Stdout)
		omitted, text := out.Omitted(), out.String()
		if !strings.HasPrefix(text, "FIRST\n") || !strings.HasSuffix(text, b.cfg.told("LAST\n")) || len(text) > 1100 || omitted < 1<<20-1000 {
			t.Fatalf("%d bytes omitted, kept %s", omitted, short(text))
		}
	}},
	{name: "output_is_held_until_the_end", absent: func(c Config) bool { return c.NoStreaming }, run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		first := make(chan struct{})
		var seen atomic.Bool
		sink := sinkFunc(func(s core.Stream, p []byte) error {
			if s == core.Stdout && seen.CompareAndSwap(false, true) {
				close(first)
			}
			return nil
		})
		done := make(chan error, 1)
		go func() {
			_, err := b.sb.Exec(b.context(t), core.ExecRequest{Command: "echo first; until [ -e " + dir + "/go ]; do sleep 0.05; done", Timeout: b.cfg.deadline()}, sink)
			done <- err
		}()
		select {
		case <-first:
		case <-time.After(b.cfg.deadline()):
			t.Error("nothing arrived while the command ran")
		}
		b.ok(t, "touch "+dir+"/go")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}},
	{name: "a_slow_reader_makes_memory_grow", absent: func(c Config) bool { return c.NoStreaming || c.NoBackPressure }, run: func(t *testing.T, b *box) {
		dir := b.scratch(t)
		taken, release := make(chan struct{}), make(chan struct{})
		var got atomic.Int64
		sink := sinkFunc(func(_ core.Stream, p []byte) error {
			if got.Add(int64(len(p))) == int64(len(p)) {
				close(taken)
				<-release
			}
			return nil
		})
		done := make(chan error, 1)
		const size = 64 << 20
		go func() {
			_, err := b.sb.Exec(b.context(t), core.ExecRequest{
				Command: fmt.Sprintf("head -c %d /dev/zero; touch %s/done", size, dir), Timeout: 3 * b.cfg.deadline(),
			}, sink)
			done <- err
		}()
		<-taken
		// A command that is not held back writes this much in a fraction of the time.
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if b.sh(t, "test -e "+dir+"/done").ExitCode == 0 {
				t.Error("the command went on while its output was not taken")
				break
			}
		}
		close(release)
		if err := <-done; err != nil || got.Load() != size {
			t.Fatalf("%d bytes of %d, %v", got.Load(), size, err)
		}
	}},
	{name: "a_background_process_with_our_pipe_holds_the_result_back", run: func(t *testing.T, b *box) {
		m := marker()
		r := b.sh(t, "sleep "+m+" & echo started")
		r.wantStdout(t, "started\n")
		if r.took > b.cfg.times(5*time.Second) {
			t.Errorf("took %s", r.took)
		}
		b.endSleepers(t, m)
	}},
	{name: "a_daemon_ends_with_the_command_that_started_it", run: func(t *testing.T, b *box) {
		m := marker()
		b.sh(t, "sleep "+m+" >/dev/null 2>&1 </dev/null & echo up").wantStdout(t, "up\n")
		b.waitSleepers(t, m, 1)
		b.endSleepers(t, m)
	}},
	{name: "a_reader_that_gives_up_ends_the_command", absent: func(c Config) bool { return c.NoStreaming }, run: func(t *testing.T, b *box) {
		sink := sinkFunc(func(core.Stream, []byte) error { return errors.New("no more") })
		res, err := b.sb.Exec(b.context(t), core.ExecRequest{
			Command: "trap '' PIPE; for i in 1 2 3 4 5; do echo $i; done 2>/dev/null; exit 4", Timeout: b.cfg.deadline(),
		}, sink)
		if err != nil || res.ExitCode != 4 {
			t.Fatalf("got %+v, %v", res, err)
		}
	}},
	{name: "closed_streams_are_taken_for_the_end", run: func(t *testing.T, b *box) {
		b.sh(t, "exec >&- 2>&-; sleep 0.3; exit 5").wantCode(t, 5)
	}},
	{name: "a_large_output_is_cut_or_damaged", run: func(t *testing.T, b *box) {
		const n = 32 << 20
		line, want := "0123456789abcde\n", n
		if b.cfg.AsLines {
			// Each line is a message; it is the bytes that are many here.
			line = strings.Repeat("0123456789abcdef", 64)[:1023] + "\n"
			want-- // the end of the last line
		}
		var got atomic.Int64
		var bad atomic.Bool
		sink := sinkFunc(func(_ core.Stream, p []byte) error {
			at := int(got.Add(int64(len(p)))) - len(p)
			for i := range p {
				if p[i] != line[(at+i)%len(line)] {
					bad.Store(true)
					break
				}
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 6*b.cfg.deadline())
		defer cancel()
		command := fmt.Sprintf("yes %s | head -c %d", strings.TrimSpace(line), n)
		res, err := b.sb.Exec(ctx, core.ExecRequest{Command: command, Timeout: 6 * b.cfg.deadline()}, sink)
		if err != nil || res.ExitCode != 0 || got.Load() != int64(want) || bad.Load() {
			t.Fatalf("%d bytes of %d, damaged: %v, %+v, %v", got.Load(), want, bad.Load(), res, err)
		}
	}},
}

// endSleepers kills the processes that sleep for the marker, so that the next case begins with none.
func (b *box) endSleepers(t testing.TB, marker string) {
	t.Helper()
	b.ok(t, `for p in /proc/[0-9]*; do l=; IFS= read -r l <$p/cmdline; case $l in *sleep`+marker+`) kill -9 ${p#/proc/};; esac; done 2>/dev/null; true`)
	b.waitSleepers(t, marker, 0)
}
