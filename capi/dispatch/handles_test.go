package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestStaleHandleNeverFindsTheSlotsNextObject(t *testing.T) {
	var tb table
	old := tb.add(tagSandbox, "first")
	require.Equal(t, "first", tb.remove(old))
	for range 1000 {
		h := tb.add(tagSandbox, "next")
		require.NotEqual(t, old, h)
		require.Nil(t, tb.get(old))
		require.Nil(t, tb.remove(old))
		require.Equal(t, "next", tb.remove(h))
	}
	require.Len(t, tb.slots, 1, "slots are used again")
}

func TestHandlesAreTyped(t *testing.T) {
	var tb table
	h := tb.add(tagProvider, "p")
	require.Positive(t, int64(h))
	for tg := tagBridge; tg <= tagSandbox; tg++ {
		forged := h&^(0xff<<slotBits) | Handle(tg)<<slotBits
		if tg == tagProvider {
			require.Equal(t, h, forged)
			continue
		}
		require.Nil(t, tb.get(forged))
	}
	_, ok := lookup[int](&tb, h)
	require.False(t, ok)
	for _, bad := range []Handle{0, -1, 1, h + 1, h + 1<<32, h - 1<<32, -h} {
		require.Nil(t, tb.get(bad), "%#x", int64(bad))
	}
}

func TestASlotIsRetiredBeforeItsGenerationsRepeat(t *testing.T) {
	var tb table
	h := tb.add(tagStream, 1)
	tb.slots[0].gen = maxGen - 1
	require.Nil(t, tb.get(h))
	tb.slots[0].val = nil
	tb.free = []uint32{0}
	last := tb.add(tagStream, 2)
	require.Positive(t, int64(last))
	require.Equal(t, 2, tb.remove(last))
	require.Empty(t, tb.free)
	require.NotEqual(t, uint64(last)&(maxSlots-1), uint64(tb.add(tagStream, 3))&(maxSlots-1))
}

func TestTableAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tb table
		live := map[Handle]int{}
		var dead []Handle
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			if len(live) > 0 && rapid.Bool().Draw(t, "remove") {
				var keys []Handle
				for h := range live {
					keys = append(keys, h)
				}
				h := rapid.SampledFrom(keys).Draw(t, "handle")
				if got := tb.remove(h); got != live[h] {
					t.Fatalf("removed %v, want %v", got, live[h])
				}
				delete(live, h)
				dead = append(dead, h)
			} else {
				h := tb.add(tag(rapid.IntRange(1, 4).Draw(t, "tag")), i)
				if _, taken := live[h]; taken {
					t.Fatalf("handle %#x was given twice", h)
				}
				live[h] = i
			}
		}
		for h, v := range live {
			if tb.get(h) != v {
				t.Fatalf("%#x gives %v, want %v", h, tb.get(h), v)
			}
		}
		for _, h := range dead {
			if tb.get(h) != nil {
				t.Fatalf("a removed handle gives %v", tb.get(h))
			}
		}
	})
}
