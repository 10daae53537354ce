package agent

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestSilentAgentIsDiagnosed(t *testing.T) {
	r := startAgent(t, transports[0], func(_ *ServeConfig, o *Options) {
		o.Diagnose = func(context.Context) Diagnosis {
			return Diagnosis{Status: core.StatusPaused, Reason: "the sandbox is paused"}
		}
	})
	require.NoError(t, r.cmd.Process.Signal(sigstop))
	begun := time.Now()
	res, _ := r.exec(core.ExecRequest{Command: "echo hi", Timeout: 4 * time.Second})
	assert.Equal(t, core.RuntimeFailure("the sandbox is paused"), res)
	assert.Less(t, time.Since(begun), 4*time.Second)
	require.NoError(t, r.cmd.Process.Signal(sigcont))
	_, out := r.sh("echo hi")
	assert.Equal(t, "hi\n", out.out)
}

// Files, terminals and defaults waited for a sandbox that was paused until it went on, without a bound.
func TestSilentAgentIsDiagnosedByEveryOperation(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			r := startAgent(t, tr, func(_ *ServeConfig, o *Options) {
				o.Diagnose = func(context.Context) Diagnosis {
					return Diagnosis{Status: core.StatusPaused, Reason: "the sandbox is paused"}
				}
			})
			src := filepath.Join(t.TempDir(), "src")
			require.NoError(t, os.WriteFile(src, []byte("x"), 0o644))
			operations := map[string]func(context.Context) error{
				"upload":   func(ctx context.Context) error { return r.Upload(ctx, src, "f") },
				"write":    func(ctx context.Context) error { return r.WriteFiles(ctx, []core.File{{Path: "f"}}) },
				"download": func(ctx context.Context) error { return r.Download(ctx, "/etc/passwd", src+"2") },
				"handover": r.Handover,
				"defaults": func(ctx context.Context) error { return r.SetDefaults(ctx, core.Defaults{}) },
				"terminal": func(ctx context.Context) error {
					_, err := r.OpenPTY(ctx, core.PTYSpec{Rows: 24, Cols: 80})
					return err
				},
				"attach": func(ctx context.Context) error { _, err := r.AttachPTY(ctx, "none", true, 0); return err },
			}
			require.NoError(t, r.cmd.Process.Signal(sigstop))
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			var all sync.WaitGroup
			for name, operate := range operations {
				all.Add(1)
				go func() {
					defer all.Done()
					assert.ErrorContains(t, operate(ctx), "the sandbox is paused", name)
				}()
			}
			all.Wait()
			assert.NoError(t, ctx.Err())
			require.NoError(t, r.cmd.Process.Signal(sigcont))
			_, out := r.sh("echo hi")
			assert.Equal(t, "hi\n", out.out)
		})
	}
}

func TestASilentAgentIsAskedAboutOnceForAllWhoWait(t *testing.T) {
	var asking, most atomic.Int32
	paused := Diagnosis{Status: core.StatusPaused, Reason: "the sandbox is paused"}
	release := make(chan struct{})
	r := startAgent(t, transports[0], func(_ *ServeConfig, o *Options) {
		o.Diagnose = func(context.Context) Diagnosis {
			most.Store(max(most.Load(), asking.Add(1)))
			defer asking.Add(-1)
			<-release
			return paused
		}
	})
	require.NoError(t, r.cmd.Process.Signal(sigstop))
	var all sync.WaitGroup
	for n := range 20 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if n == 0 { // somebody who waits for another's question can still give up
				time.AfterFunc(3*ackWithin/2, cancel)
			}
			res, err := r.Exec(ctx, core.ExecRequest{Command: "true"}, core.Discard)
			if n > 0 {
				assert.NoError(t, err)
				assert.Equal(t, core.RuntimeFailure(paused.Reason), res)
			}
		})
	}
	time.AfterFunc(2*ackWithin, func() { close(release) })
	all.Wait()
	assert.EqualValues(t, 1, most.Load())
	require.NoError(t, r.cmd.Process.Signal(sigcont))
}
