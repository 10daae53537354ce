package core

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestOutputAgainstModel holds the segments to what a plain byte slice would keep.
func TestOutputAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int64{0, 2, 100, 70_000, 3 << 20}).Draw(t, "limit")
		sizes := rapid.SliceOfN(rapid.SampledFrom([]int{0, 1, 7, 4096, 32 << 10, 65536, 1<<20 - 1, 1 << 20, 1<<20 + 1}), 0, 8).Draw(t, "sizes")
		c := NewCollector(limit)
		defer c.Close()
		var all []byte
		for i, n := range sizes {
			p := bytes.Repeat([]byte{byte('a' + i)}, n)
			if err := c.Write(Stdout, p); err != nil {
				t.Fatal(err)
			}
			all = append(all, p...)
		}
		want := all
		if n := int64(len(all)); limit > 0 && n > limit {
			head, tail := limit/2, limit-limit/2
			want = fmt.Appendf(bytes.Clone(all[:head]), "\n... %d bytes omitted ...\n", n-limit)
			want = append(want, all[n-tail:]...)
			if got := c.Output(Stdout).Omitted(); got != n-limit {
				t.Fatalf("omitted %d, want %d", got, n-limit)
			}
		}
		out := c.Output(Stdout)
		if out.Len() != int64(len(want)) {
			t.Fatalf("length %d, want %d", out.Len(), len(want))
		}
		step := rapid.SampledFrom([]int{1 << 10, 65536, 5 << 20}).Draw(t, "step")
		var got []byte
		buf := make([]byte, step)
		for n := out.Next(buf); n > 0; n = out.Next(buf) {
			got = append(got, buf[:n]...)
		}
		if !bytes.Equal(got, want) {
			t.Fatal("bytes differ from the model")
		}
	})
}

func TestOutputKnowsWhetherItIsASCII(t *testing.T) {
	for text, want := range map[string]bool{"": true, "plain\n\x00\x7f": true, strings.Repeat("x", 100) + "é": false, "\xff": false} {
		c := NewCollector(0)
		require.NoError(t, c.Write(Stderr, []byte(text)))
		assert.Equal(t, want, c.Output(Stderr).ASCII(), "%q", text)
		c.Close()
	}
}

func TestOutputAfterCloseIsDropped(t *testing.T) {
	c := NewCollector(0)
	require.NoError(t, c.Write(Stdout, bytes.Repeat([]byte("x"), 3<<20)))
	c.Close()
	require.NoError(t, c.Write(Stdout, []byte("late")))
	assert.Zero(t, c.Output(Stdout).Len())
	c.Close()
}
