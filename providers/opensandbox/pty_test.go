package opensandbox

import (
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
