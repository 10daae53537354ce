package dispatch

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Whatever the sizes of events and buffers, each event comes once, whole, in order.
func TestQueueKeepsOrderAndBorders(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var q queue
		var want, got []event
		take := func(size int) int {
			p := make([]byte, size)
			n, done, logs := q.pop(p)
			events := decodeEvents(t, p[:n])
			for _, e := range events {
				if e.kind == EventDone {
					done--
				} else {
					logs--
				}
			}
			require.Zero(rt, done)
			require.Zero(rt, logs)
			got = append(got, events...)
			return n
		}
		for i := range rapid.IntRange(1, 60).Draw(rt, "events") {
			kind := rapid.SampledFrom([]uint16{EventDone, EventLog}).Draw(rt, "kind")
			size := rapid.SampledFrom([]int{0, 1, 7, 8, 9, 100, 20_000, 70_000}).Draw(rt, "payload")
			e := event{
				id: uint64(i), kind: kind, flags: FlagJSON, status: -Code(i), aux: uint32(i),
				payload: bytes.Repeat([]byte{byte(i)}, size),
			}
			q.push(e)
			want = append(want, e)
			if rapid.Bool().Draw(rt, "drain") {
				take(rapid.IntRange(0, MaxEvent).Draw(rt, "buffer"))
			}
		}
		for !q.empty() {
			require.Positive(rt, take(MaxEvent), "the largest buffer takes any event")
		}
		require.Len(rt, got, len(want))
		for i := range want {
			require.Equal(rt, want[i].id, got[i].id)
			require.Equal(rt, want[i].status, got[i].status)
			require.True(rt, bytes.Equal(want[i].payload, got[i].payload))
		}
	})
}

func TestOneDrainIsBounded(t *testing.T) {
	var q queue
	for i := range 10_000 {
		q.push(event{id: uint64(i), kind: EventDone})
	}
	p := make([]byte, MaxEvent)
	n, done, _ := q.pop(p)
	require.Equal(t, softDrain/HeaderSize+1, done)
	require.Equal(t, done*HeaderSize, n)
}

func TestADrainedQueueGivesItsMemoryBack(t *testing.T) {
	var q queue
	for range 100 {
		q.push(event{kind: EventDone, payload: make([]byte, 64<<10)})
	}
	p := make([]byte, MaxEvent)
	for !q.empty() {
		q.pop(p)
	}
	require.LessOrEqual(t, cap(q.buf), idleQueue)
}
