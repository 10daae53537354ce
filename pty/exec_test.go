package pty

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// What is typed is the same in every language that types commands.
func TestTypedAsTheTableSays(t *testing.T) {
	raw, err := os.ReadFile("../tests/tables/typed.json")
	require.NoError(t, err)
	var table struct {
		First, Second string
		Cases         []struct{ Command, Typed string }
	}
	require.NoError(t, json.Unmarshal(raw, &table))
	require.NotEmpty(t, table.Cases)
	for _, c := range table.Cases {
		got, err := typed(c.Command, markers{table.First, table.Second})
		require.NoError(t, err)
		assert.Equal(t, c.Typed, string(got))
	}
	_, err = typed("a\x00b", newMarkers())
	assert.Equal(t, core.KindInvalid, core.KindOf(err))
}

func TestMarkedOutputIsFoundHoweverItIsCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMarkers()
		noise := rapid.SampledFrom([]string{"", "$ ", "> > echo NGS\r\n", m.first, m.first + "\n" + m.second + "S", string(m.end()) + "7\n"})
		body := rapid.SampledFrom([]string{"", "out\n", "a\r\nb", m.first + m.second, string(m.start()) + "\n", "\x00\xff\n", strings.Repeat("x", 5000)}).Draw(t, "body")
		code := rapid.IntRange(0, 255).Draw(t, "code")
		end := rapid.SampledFrom([]string{"\n", "\r\n", "\n$ "}).Draw(t, "end")
		before := noise.Draw(t, "before")
		text := before + string(m.start()) + end[:1+strings.Count(end, "\r")] + body + string(m.end()) + fmt.Sprint(code) + end
		o := newMarked(m)
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "n")
			o.feed(rest[:n])
			rest = rest[n:]
		}
		got, known := o.status()
		if !o.complete() || !known || got != code || !bytes.Equal(o.output(), []byte(body)) {
			t.Fatalf("%q gave %q, code %d %v", text, o.output(), got, known)
		}
	})
}

func TestAnEndWithoutAStartCountsWhenNothingFollows(t *testing.T) {
	m := newMarkers()
	typed := "older\r\n$ { printf '%s%s\\n' '" + m.first + "' '" + m.second + "S'\r\n> x )\r\nsyntax error\r\n$ printf '%s%s:%s\\n' '" + m.first + "'\r\n"
	for _, n := range []int{1, 7, 1000} {
		o := newMarked(m)
		for rest := []byte(typed + string(m.end()) + "2\r\n$ "); len(rest) > 0; rest = rest[min(n, len(rest)):] {
			o.feed(rest[:min(n, len(rest))])
		}
		code, known := o.status()
		assert.True(t, o.hasStatus() && !o.complete() && known)
		assert.Equal(t, 2, code)
		assert.Equal(t, "> x )\r\nsyntax error\r\n", string(o.output()))
		o.feed([]byte(string(m.start()) + "\r\nout" + string(m.end()) + "3\r\n"))
		code, known = o.status()
		assert.True(t, o.complete() && known)
		assert.Equal(t, 3, code)
		assert.Equal(t, "out", string(o.output()))
	}
}

func TestExecTellsOfAMistakeInTheCommand(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	res, err := s.Exec(r.ctx(), "echo )")
	require.NoError(t, err)
	assert.Contains(t, strings.ToLower(string(res.Stdout)), "syntax error")
	assert.NotContains(t, string(res.Stdout), "NGS")
	assert.Equal(t, 2, res.Code)
	res, err = s.Exec(r.ctx(), "echo alive")
	require.NoError(t, err)
	assert.Equal(t, "alive", strings.TrimSpace(string(res.Stdout)))
}

func TestExecGivesTheOutputAlone(t *testing.T) {
	r := newRig(t)
	for _, pipes := range []bool{false, true} {
		s := r.open(core.PTYSpec{NoTerminal: pipes})
		run := func(command string) (core.PTYResult, string) {
			res, err := s.Exec(r.ctx(), command)
			require.NoError(t, err)
			require.True(t, res.Known)
			return res, strings.ReplaceAll(string(res.Stdout), "\r\n", "\n")
		}
		_, out := run("echo one; echo two")
		assert.Equal(t, "one\ntwo\n", out)
		_, _ = run("cd /; X=5")
		res, out := run("pwd; echo $X; (exit 7)")
		assert.Equal(t, "/\n5\n", out)
		assert.Equal(t, 7, res.Code)
		_, out = run("V=" + strings.Repeat("x", 6000) + "; echo ${#V}")
		assert.Equal(t, "6000\n", out)
		res, out = run("printf 'NGSdeadbeef0123:0\\n'; printf 'x:9\\n'; (exit 3)")
		assert.Equal(t, "NGSdeadbeef0123:0\nx:9\n", out)
		assert.Equal(t, 3, res.Code)
		_, out = run("cat; printf '%s' \"it's ☕ a\tb\"'\\\\'")
		assert.Equal(t, "it's ☕ a\tb\\\\", out)
		res, _ = run("echo err >&2")
		if pipes {
			assert.Equal(t, "err\n", string(res.Stderr))
		} else {
			assert.Empty(t, res.Stderr)
		}
	}
}

func TestExecsTakeTurns(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			res, err := s.Exec(r.ctx(), fmt.Sprintf("echo %d; (exit %d)", i, i))
			assert.NoError(t, err)
			assert.Equal(t, fmt.Sprintf("%d\r\n", i), string(res.Stdout))
			assert.Equal(t, i, res.Code)
		})
	}
	wg.Wait()
}

func TestExecThatEndsTheShellIsAnError(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	res, err := s.Exec(r.ctx(), "echo last; exit 3")
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.ErrorContains(t, err, "ended before the command finished")
	assert.Equal(t, "last\r\n", string(res.Stdout))
}

func TestExecEndsWithItsContextAndKeepsWhatWasPrinted(t *testing.T) {
	r := newRig(t)
	s := r.open(core.PTYSpec{})
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	res, err := s.Exec(ctx, "echo before; sleep 86425")
	assert.Equal(t, core.KindTimeout, core.KindOf(err))
	assert.Equal(t, "before\r\n", string(res.Stdout))
	assert.False(t, res.Known)
}

func TestRunDetachedCollectsFromLookToLook(t *testing.T) {
	r := newRig(t)
	r.times.quiet = 20 * time.Millisecond
	for _, pipes := range []bool{false, true} {
		s := r.open(core.PTYSpec{NoTerminal: pipes})
		res, err := s.RunDetached(r.ctx(), "for i in 1 2 3 4 5 6; do echo n$i; sleep 0.1; done; (exit 9)", 50*time.Millisecond)
		require.NoError(t, err)
		assert.Equal(t, "n1\nn2\nn3\nn4\nn5\nn6\n", strings.ReplaceAll(string(res.Stdout), "\r\n", "\n"))
		assert.Equal(t, 9, res.Code)
		res, err = s.Exec(r.ctx(), "echo attached")
		require.NoError(t, err)
		assert.Equal(t, "attached", strings.TrimSpace(string(res.Stdout)))
	}
}

func TestRunDetachedTellsWhatItLost(t *testing.T) {
	r := newRig(t)
	r.times.quiet = 20 * time.Millisecond
	s := r.open(core.PTYSpec{NoTerminal: true})
	_, err := s.RunDetached(r.ctx(), "echo go; sleep 0.2; head -c 3000000 /dev/zero | tr '\\0' x; sleep 3", 1200*time.Millisecond)
	var gap *core.PTYGap
	require.True(t, errors.As(err, &gap), "%v", err)
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.InDelta(t, 3_000_000-1<<20, gap.Bytes, 100_000)
}

func TestRunDetachedThatEndsTheShellIsAnError(t *testing.T) {
	r := newRig(t)
	r.times.quiet = 10 * time.Millisecond
	s := r.open(core.PTYSpec{})
	_, err := s.RunDetached(r.ctx(), "sleep 0.1; exit 3", 200*time.Millisecond)
	assert.ErrorContains(t, err, "ended before the command finished")
}
