package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func BenchmarkTerminalEcho(b *testing.B) {
	for _, tr := range transports {
		b.Run(tr.name, func(b *testing.B) {
			r := startAgent(b, tr, nil)
			s := r.terminal(core.PTYSpec{Command: "stty raw -echo; echo ready; exec cat"})
			r.until(s, "ready\n")
			for b.Loop() {
				require.NoError(b, s.Write(b.Context(), []byte("x")))
				_, err := s.Read(b.Context())
				require.NoError(b, err)
			}
			require.NoError(b, s.Close(r.soon()))
		})
	}
}

func BenchmarkTerminalOutput64MiB(b *testing.B) {
	for _, tr := range transports {
		for _, pipes := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/pipes=%v", tr.name, pipes), func(b *testing.B) {
				r := startAgent(b, tr, nil)
				b.SetBytes(64 << 20)
				for b.Loop() {
					s := r.terminal(core.PTYSpec{Command: "exec head -c 67108864 /dev/zero", NoTerminal: pipes})
					n := 0
					for {
						p, err := s.Read(b.Context())
						if errors.Is(err, io.EOF) {
							break
						}
						require.NoError(b, err)
						n += len(p)
					}
					require.Equal(b, 64<<20, n)
					require.NoError(b, s.Close(r.soon()))
				}
			})
		}
	}
}

func BenchmarkTerminalOpenExecClose(b *testing.B) {
	for _, tr := range transports {
		b.Run(tr.name, func(b *testing.B) {
			r := startAgent(b, tr, nil)
			for b.Loop() {
				s := r.terminal(core.PTYSpec{Command: "exec true"})
				_ = r.rest(s)
				require.NoError(b, s.Close(r.soon()))
			}
		})
	}
}

func BenchmarkTerminalTypedCommand(b *testing.B) {
	r := startAgent(b, transports[0], nil)
	s := r.terminal(core.PTYSpec{})
	for b.Loop() {
		res, err := s.Exec(b.Context(), "true")
		require.NoError(b, err)
		require.True(b, res.Known)
	}
	require.NoError(b, s.Close(r.soon()))
}

// The memory of the agent with idle terminals; reported, not timed.
func BenchmarkTerminalMemory(b *testing.B) {
	r := startAgent(b, transports[0], nil)
	private := func() float64 {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.cmd.Process.Pid))
		require.NoError(b, err)
		for line := range strings.Lines(string(raw)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "RssAnon:" {
				kib, err := strconv.Atoi(f[1])
				require.NoError(b, err)
				return float64(kib)
			}
		}
		b.Fatal("no RssAnon")
		return 0
	}
	before := private()
	const n = 20
	var all []core.PTYSession
	for range n {
		s := r.terminal(core.PTYSpec{Command: "echo ready; read x"})
		r.until(s, "ready")
		all = append(all, s)
	}
	for b.Loop() {
		_ = private()
	}
	b.ReportMetric(before, "KiB-before")
	b.ReportMetric((private()-before)/n, "KiB/terminal")
	for _, s := range all {
		require.NoError(b, s.Close(r.soon()))
	}
}
