package core

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATraceparentTravelsInTheContext(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	require.Empty(t, Traceparent(context.Background()))
	require.Equal(t, parent, Traceparent(WithTraceparent(context.Background(), parent)))
}

func TestATraceparentOfAnotherFormIsLeftOut(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, bad := range map[string]string{
		"empty":          "",
		"a second line":  good + "\r\nX-Evil: 1",
		"upper case":     strings.ToUpper(good),
		"no trace":       "00-" + strings.Repeat("0", 32) + good[35:],
		"no span":        good[:36] + strings.Repeat("0", 16) + "-01",
		"other version":  "ff" + good[2:],
		"line in an id":  good[:40] + "\r\n" + good[42:],
		"wrong dash":     good[:35] + "_" + good[36:],
		"too short":      good[:54],
		"flags not hex":  good[:53] + "zz",
		"non-ASCII text": good[:53] + "é",
	} {
		require.Empty(t, Traceparent(WithTraceparent(context.Background(), bad)), name)
	}
}
