package ptyserver

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// TestFloodIsSentInBatches: every message wakes a chain of threads up to the reader's event loop, and the kernel gives a
// terminal's output in small pieces. What nobody prints on and on must not wait, above all no echo.
func TestFloodIsSentInBatches(t *testing.T) {
	newOne := func() (*session, *holder) {
		s := newSession(&Server{budget: NewBudget(1 << 20), times: standard}, "id", Spec{Terminal: true}, 24, 80)
		s.state = running
		h := newHolder(s, nil, false)
		require.NoError(t, s.attach(h, false, 0, true))
		return s, h
	}
	buf := make([]byte, 1+proto.MaxChunk)
	sent := func(s *session, h *holder) int {
		_, p, done := s.next(h, buf)
		require.False(t, done)
		s.hasSent(h, len(p)-1)
		return len(p) - 1
	}
	t.Run("an echo goes at once", func(t *testing.T) {
		s, h := newOne()
		for range 100 {
			s.produce(proto.Stdout, []byte("x"))
			assert.True(t, s.worthSending(h))
			assert.Equal(t, 1, sent(s, h))
		}
	})
	t.Run("a flood is put together", func(t *testing.T) {
		s, h := newOne()
		s.produce(proto.Stdout, make([]byte, 4<<10))
		assert.Equal(t, 4<<10, sent(s, h), "nobody knew that more would come")
		h.sentAt = time.Now().Add(time.Hour) // as long as the pause lasts
		for range 3 {
			s.produce(proto.Stdout, make([]byte, 4<<10))
			assert.False(t, s.worthSending(h))
		}
		s.produce(proto.Stdout, make([]byte, 4<<10))
		assert.Equal(t, 16<<10, sent(s, h))
	})
	t.Run("its end comes after the pause", func(t *testing.T) {
		s, h := newOne()
		s.produce(proto.Stdout, make([]byte, 4<<10))
		sent(s, h)
		s.produce(proto.Stdout, []byte("prompt"))
		assert.Equal(t, 6, sent(s, h))
		s.produce(proto.Stdout, []byte("x"))
		assert.True(t, s.worthSending(h), "after a small piece nothing waits")
	})
	t.Run("its end comes with the end of the process", func(t *testing.T) {
		s, h := newOne()
		s.produce(proto.Stdout, make([]byte, 4<<10))
		sent(s, h)
		h.sentAt = time.Now().Add(time.Hour)
		s.produce(proto.Stdout, []byte("last"))
		s.state = ended
		assert.Equal(t, 4, sent(s, h))
	})
}
