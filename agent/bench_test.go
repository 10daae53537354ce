package agent

import (
	"context"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// The floor of the benchmarks below: what a command costs without a sandbox.
func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		require.NoError(b, exec.Command("/bin/true").Run())
	}
}

func BenchmarkExecTrue(b *testing.B) {
	for _, tr := range transports {
		b.Run(tr.name, func(b *testing.B) {
			r := startAgent(b, tr, nil)
			for b.Loop() {
				_, err := r.Exec(context.Background(), core.ExecRequest{Argv: []string{"/bin/true"}}, core.Discard)
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkOutput64MiB(b *testing.B) {
	for _, tr := range transports {
		b.Run(tr.name, func(b *testing.B) {
			r := startAgent(b, tr, nil)
			b.SetBytes(64 << 20)
			for b.Loop() {
				c := core.NewCollector(0)
				_, err := r.Exec(context.Background(), core.ExecRequest{Command: "head -c 67108864 /dev/zero"}, c)
				require.NoError(b, err)
				require.Equal(b, int64(64<<20), c.Output(core.Stdout).Len())
				c.Close()
			}
		})
	}
}
