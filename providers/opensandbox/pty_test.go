package opensandbox

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// slowPump is how long a daemon may take for output that is there. It reports an exit at once, and then forgets what it
// has not taken by then.
const slowPump = 20 * time.Millisecond

func TestSessionOutlivesItsLastOutput(t *testing.T) {
	for range 5 {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		cmd := exec.Command("bash", "-c", sessionCommand("echo tail; exit 4", nil, "", ""))
		cmd.Stdout, cmd.Stderr = w, w
		require.NoError(t, cmd.Start())
		require.NoError(t, w.Close())
		var taken atomic.Value
		taken.Store("")
		done := make(chan struct{})
		go func() {
			defer close(done)
			p := make([]byte, 4<<10)
			n, _ := r.Read(p)
			time.Sleep(slowPump)
			taken.Store(string(p[:n]))
		}()
		err = cmd.Wait()
		known := taken.Load()
		<-done
		require.NoError(t, r.Close())
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		assert.Equal(t, 4, exit.ExitCode())
		assert.Equal(t, "tail", strings.TrimSpace(known.(string)), "what was taken when the daemon told the exit")
	}
}

func TestALockIsRemovedWhenTheProviderIsClosedBehindItsSession(t *testing.T) {
	ended, removed := make(chan struct{}), atomic.Int32{}
	daemon := &hasty{t: t}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/directories" {
			daemon.ServeHTTP(w, r)
			return
		}
		<-ended
		if _, err := os.Stat(r.URL.Query().Get("path")); assert.NoError(t, err) {
			daemon.ServeHTTP(w, r)
			removed.Add(1)
		}
	}))
	t.Cleanup(h.Close)
	i := socketInstance(t, h.URL)
	ctx, cancel := context.WithTimeout(t.Context(), wireSoon)
	defer cancel()
	s, err := i.OpenPTY(ctx, core.PTYSpec{Command: "echo out", NoTerminal: true})
	require.NoError(t, err)
	assert.Equal(t, len("out\n"), drained(ctx, t, s))
	context.AfterFunc(i.p.life, func() { close(ended) })
	require.NoError(t, i.p.Close(ctx))
	assert.EqualValues(t, 1, removed.Load())
}
