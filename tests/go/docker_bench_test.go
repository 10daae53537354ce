package tests

import (
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// BenchmarkDockerExec measures one command after the other, by each way into a container.
func BenchmarkDockerExec(b *testing.B) {
	for _, way := range []string{"socket", "stream", "engine"} {
		b.Run(way, func(b *testing.B) {
			b.Setenv("XDG_STATE_HOME", b.TempDir())
			sb := begin(b, newDocker(b, dockerWays[way]), core.Spec{Image: testImage})
			for b.Loop() {
				shell(b, sb, core.ExecRequest{Command: "true", Timeout: 30 * time.Second})
			}
		})
	}
}

// BenchmarkDockerExecParallel measures 32 commands at once.
func BenchmarkDockerExecParallel(b *testing.B) {
	for _, way := range []string{"socket", "stream"} {
		b.Run(way, func(b *testing.B) {
			b.Setenv("XDG_STATE_HOME", b.TempDir())
			sb := begin(b, newDocker(b, dockerWays[way]), core.Spec{Image: testImage})
			b.SetParallelism(16) // times the two processors
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					shell(b, sb, core.ExecRequest{Command: "true", Timeout: 30 * time.Second})
				}
			})
		})
	}
}

// BenchmarkDockerOutput measures 64 MiB of output.
func BenchmarkDockerOutput(b *testing.B) {
	for _, way := range []string{"socket", "stream", "engine"} {
		b.Run(way, func(b *testing.B) {
			b.Setenv("XDG_STATE_HOME", b.TempDir())
			sb := begin(b, newDocker(b, dockerWays[way]), core.Spec{Image: testImage})
			b.SetBytes(64 << 20)
			for b.Loop() {
				c := core.NewCollector(0)
				if res, err := sb.Exec(b.Context(), core.ExecRequest{Command: "head -c 67108864 /dev/zero"}, c); err != nil || res.ExitCode != 0 {
					b.Fatal(res, err)
				}
				c.Close()
			}
		})
	}
}

// BenchmarkDockerStart measures a sandbox from nothing to its first command and to its end.
func BenchmarkDockerStart(b *testing.B) {
	for _, way := range []string{"socket", "stream", "engine"} {
		b.Run(way, func(b *testing.B) {
			b.Setenv("XDG_STATE_HOME", b.TempDir())
			p := newDocker(b, dockerWays[way])
			for b.Loop() {
				sb := core.NewSandbox(p, core.Spec{Image: testImage})
				if err := sb.Start(b.Context()); err != nil {
					b.Fatal(err)
				}
				shell(b, sb, core.ExecRequest{Command: "true"})
				if err := sb.Stop(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
