package ptyserver

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// FuzzClientFrames writes bytes into a connection where frames are expected, and hangs up. The server must let go of the
// client, and the next one must find the session in order.
func FuzzClientFrames(f *testing.F) {
	frame := func(first byte, payload string) []byte {
		head := []byte{first, 0x80 | byte(len(payload)), 0, 0, 0, 0} // masked with nothing
		if len(payload) > 125 {
			head = []byte{first, 0x80 | 126, byte(len(payload) >> 8), byte(len(payload)), 0, 0, 0, 0}
		}
		return append(head, payload...)
	}
	const final, text, binary, closing, ping, pong = 0x80, 1, 2, 8, 9, 10
	f.Add(frame(final|binary, "\x00input\n"))
	f.Add(append(frame(text, `{"type":"resi`), frame(final, `ze","cols":100,"rows":30}`)...))
	f.Add(frame(final|text, `{"type":"ack","offset":3}`))
	f.Add(frame(final|text, `{"type":"signal","signal":"SIGKILL"}`))
	f.Add(append(frame(final|ping, "are you there"), frame(final|pong, "")...))
	f.Add(frame(final|closing, "\x03\xe8bye"))
	f.Add(frame(final|closing, string([]byte{proto.CloseComesBack >> 8, proto.CloseComesBack & 0xff})))
	f.Add([]byte{final | binary, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 1})
	f.Add([]byte{0xf3, 5, 1, 2})
	p := newPlace(f, standard)
	one := newSession(p.s, newID(), Spec{Command: "exec cat >/dev/null"}, 24, 80)
	require.True(f, p.s.add(one))
	d := websocket.Dialer{NetDial: func(string, string) (net.Conn, error) { return net.Dial("unix", p.l.Addr().String()) }}
	f.Fuzz(func(t *testing.T, data []byte) {
		if one.info().ExitCode != nil {
			one = newSession(p.s, newID(), Spec{Command: "exec cat >/dev/null"}, 24, 80)
			require.True(t, p.s.add(one))
		}
		// Without a takeover: whoever was here before has to be gone.
		conn, _, err := d.Dial("ws://x/pty/"+one.id+"/ws?pty=0&flow=1", http.Header{})
		require.NoError(t, err)
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		_, greeting, err := conn.ReadMessage()
		require.NoError(t, err)
		require.Contains(t, string(greeting), `"connected"`)
		_, _ = conn.NetConn().Write(data) // the server may have hung up in the middle of it
		require.NoError(t, conn.Close())
		for end := time.Now().Add(patience); one.held(); time.Sleep(50 * time.Microsecond) {
			require.True(t, time.Now().Before(end), "the server does not let go of a client that has gone")
		}
	})
}
