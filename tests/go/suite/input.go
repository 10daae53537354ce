package suite

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func noStdin(c Config) bool { return c.NoStdin }

var inputCases = []testCase{
	{name: "a_command_waits_for_input_that_was_not_given", run: func(t *testing.T, b *box) {
		b.sh(t, "cat; echo done").wantStdout(t, "done\n")
	}},
	{name: "input_is_lost_or_changed", absent: noStdin, run: func(t *testing.T, b *box) {
		for _, n := range []int{0, 1, 4096, 65537, 3<<20 + 1} {
			data := pattern(n)
			b.run(t, core.ExecRequest{Command: "cat", Stdin: bytes.NewReader(data)}).wantStdout(t, string(data))
		}
	}},
	{name: "input_arrives_without_its_end", absent: noStdin, run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "wc -l", Stdin: strings.NewReader("a\nb\n")}).wantStdout(t, "2\n")
	}},
	{name: "input_that_nobody_reads_holds_the_command_back", absent: noStdin, run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "echo ok", Stdin: bytes.NewReader(pattern(8 << 20))}).wantStdout(t, "ok\n")
	}},
	{name: "input_that_never_ends_holds_the_result_back", absent: noStdin, run: func(t *testing.T, b *box) {
		r, w := io.Pipe()
		defer w.Close()
		defer r.Close()
		b.run(t, core.ExecRequest{Command: "echo ok", Stdin: r}).wantStdout(t, "ok\n")
	}},
	{name: "a_failing_source_of_input_hangs_the_command", absent: noStdin, run: func(t *testing.T, b *box) {
		broken := io.MultiReader(strings.NewReader("some"), failingReader{})
		r, err := b.try(b.context(t), core.ExecRequest{Command: "wc -c", Stdin: broken})
		if err == nil && strings.TrimSpace(r.stdout) != strconv.Itoa(len("some")) {
			t.Fatalf("got %s", r)
		}
	}},
	{name: "input_is_taken_from_an_earlier_command", absent: noStdin, run: func(t *testing.T, b *box) {
		b.run(t, core.ExecRequest{Command: "head -c 1", Stdin: strings.NewReader("first and a rest")}).wantStdout(t, "f")
		b.run(t, core.ExecRequest{Command: "cat", Stdin: strings.NewReader("second")}).wantStdout(t, "second")
		b.sh(t, "cat").wantStdout(t, "")
	}},
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("the source broke") }
