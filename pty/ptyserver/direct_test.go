package ptyserver

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// TestSmallOutputBehindAFullConnectionComesInOrder has a connection fill up with what is sent at once, which leaves a
// part of a message over, and more to come after it.
func TestSmallOutputBehindAFullConnectionComesInOrder(t *testing.T) {
	const lines = 6000
	p := newPlace(t, standard)
	one, conn := p.session(fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); done", lines))
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	require.Equal(t, int64(want.Len()), p.settled(one), "all of it fits into what is retained")
	var got strings.Builder
	for {
		kind, msg, err := conn.ReadMessage()
		require.NoError(t, err, "after %d bytes", got.Len())
		if kind == websocket.TextMessage {
			assert.Contains(t, string(msg), `"exit"`)
			break
		}
		require.Equal(t, proto.Stdout, msg[0])
		got.Write(msg[1:])
	}
	assert.Equal(t, want.String(), got.String())
}

// TestAHolderIsNotToldOfEveryKey types keys one after the other: each comes back, and that they were taken is said
// together.
func TestAHolderIsNotToldOfEveryKey(t *testing.T) {
	const keys = 100
	p := newPlace(t, quick)
	one, old := p.session("cat")
	conn := p.dialWith(one, "&flow=1")
	_ = old.Close()
	_, _, err := conn.ReadMessage()
	require.NoError(t, err)
	told, taken, echoed := 0, int64(0), ""
	hear := func() {
		t.Helper()
		kind, msg, err := conn.ReadMessage()
		require.NoError(t, err)
		if kind == websocket.BinaryMessage {
			echoed += string(msg[1:])
			return
		}
		var c proto.Control
		require.NoError(t, json.Unmarshal(msg, &c))
		require.Equal(t, proto.TypeTaken, c.Type)
		assert.Greater(t, c.Offset, taken)
		told, taken = told+1, c.Offset
	}
	want := ""
	for i := range keys {
		key := string(rune('a' + i%26))
		want += key
		require.NoError(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00"+key)))
		for len(echoed) < len(want) {
			hear()
		}
	}
	for taken < keys {
		hear()
	}
	assert.Equal(t, want, echoed)
	assert.Less(t, told, keys)
}
