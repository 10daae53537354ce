package prompt_test

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/prompt"
)

// ends gives the client's and the server's end of a websocket.
func ends(t *testing.T) (client, server *websocket.Conn) {
	t.Helper()
	came := make(chan *websocket.Conn, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
		assert.NoError(t, err)
		came <- c
	}))
	t.Cleanup(s.Close)
	client, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.URL, "http"), nil)
	require.NoError(t, err)
	server = <-came
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client, server
}

func TestMessagesArriveBothWays(t *testing.T) {
	client, server := ends(t)
	for _, way := range []struct {
		name     string
		from, to *websocket.Conn
		client   bool
	}{{"to the server", client, server, true}, {"to the client", server, client, false}} {
		c := prompt.New(way.from.NetConn(), way.client)
		require.NotNil(t, c, way.name)
		for _, n := range []int{0, 1, 2, 123, 124, 125, 126, 127, 1000, prompt.Most} {
			want := bytes.Repeat([]byte{byte(n), 7}, n)[:n]
			left, err := c.Send(3, want)
			require.NoError(t, err, way.name)
			require.Empty(t, left, "a connection that carries nothing else has room")
			kind, got, err := way.to.ReadMessage()
			require.NoError(t, err, "%s, %d bytes", way.name, n)
			assert.Equal(t, websocket.BinaryMessage, kind)
			assert.Equal(t, append([]byte{3}, want...), got, "%s, %d bytes", way.name, n)
		}
		_, err := c.Send(0, make([]byte, prompt.Most+1))
		assert.Error(t, err)
	}
}

func TestWhatAFullConnectionLeavesFollowsLater(t *testing.T) {
	client, server := ends(t)
	c := prompt.New(client.NetConn(), true)
	sent := 0
	var left []byte
	for len(left) == 0 {
		var err error
		left, err = c.Send(0, bytes.Repeat([]byte{byte(sent)}, prompt.Most))
		require.NoError(t, err)
		sent++
	}
	finished := make(chan error, 1)
	go func() { finished <- c.Finish(left) }()
	for i := range sent {
		_, got, err := server.ReadMessage()
		require.NoError(t, err)
		require.Equal(t, append([]byte{0}, bytes.Repeat([]byte{byte(i)}, prompt.Most)...), got)
	}
	require.NoError(t, <-finished)
}

func TestOnlyPlainConnectionsWillDo(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	assert.Nil(t, prompt.New(a, true))
	client, _ := ends(t)
	assert.NotNil(t, prompt.New(wrapper{client.NetConn()}, true))
	assert.Nil(t, prompt.New(opaque{client.NetConn()}, true), "what it does to the bytes is not known")
}

type wrapper struct{ net.Conn }

func (w wrapper) Plain() net.Conn { return w.Conn }

type opaque struct{ net.Conn }

func TestAClosedConnectionIsAnError(t *testing.T) {
	client, _ := ends(t)
	c := prompt.New(client.NetConn(), true)
	require.NoError(t, client.Close())
	_, err := c.Send(0, []byte("x"))
	assert.ErrorIs(t, err, net.ErrClosed)
}
