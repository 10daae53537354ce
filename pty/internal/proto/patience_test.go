package proto

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

type deadlines []time.Duration

func (d *deadlines) SetReadDeadline(t time.Time) error {
	*d = append(*d, time.Until(t))
	return nil
}

func TestPatienceIsExtendedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set deadlines
		p := Patience{Conn: &set, Silence: 64 * time.Second}
		for range 3 { // within a 64th it is good as it is
			require.NoError(t, p.Extend())
			time.Sleep(time.Second - time.Nanosecond)
			require.NoError(t, p.Extend())
			time.Sleep(time.Nanosecond)
		}
		require.Equal(t, deadlines{64 * time.Second, 64 * time.Second, 64 * time.Second}, set)
	})
}
