package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzStrangers lets somebody without the token knock at the agent, and somebody without it answer the host. Neither may
// be let in, whatever is said.
func FuzzStrangers(f *testing.F) {
	token := bytes.Repeat([]byte{7}, TokenLen)
	f.Add([]byte{}, []byte{})
	f.Add(make([]byte, proofLen), append([]byte(magic), 1, 0, 0, 0))
	f.Add(bytes.Repeat([]byte{7}, claimLen+proofLen), append(append([]byte(magic), 1, 0, 0, 0), make([]byte, helloLen+answerLen)...))
	f.Fuzz(func(t *testing.T, knock, answer []byte) {
		require.Error(t, saying(knock, func(c net.Conn) error { return AcceptHandshake(c, token, nil) }), "the agent lets a stranger in")
		require.Error(t, saying(answer, func(c net.Conn) error {
			_, err := OpenHandshake(c, token, false, time.Time{})
			return err
		}), "the host believes a stranger")
	})
}

// FuzzHeads reads frames from any bytes: none is longer than allowed, and what is read is what was there.
func FuzzHeads(f *testing.F) {
	f.Add([]byte{3, 0, 0, 0, byte(Out), 'a', 'b', 'c', 0, 0, 0, 0, byte(Accepted)})
	f.Add([]byte{1, 0, 1, 0, byte(Out)})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, byte(Result)})
	f.Fuzz(func(t *testing.T, data []byte) {
		var again bytes.Buffer
		err := saying(data, func(c net.Conn) error {
			st, back := NewHostStream(c), NewHostStream(discarding{Writer: &again})
			for {
				kind, p, err := st.ReadFrame(make([]byte, 0, 16))
				if err != nil {
					return err
				}
				require.LessOrEqual(t, len(p), maxReply)
				if kind == Out || kind == Err || kind == Stdin {
					require.LessOrEqual(t, len(p), MaxData)
				}
				require.NoError(t, back.WriteFrame(kind, p))
			}
		})
		require.True(t, bytes.HasPrefix(data, again.Bytes()))
		if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			require.Equal(t, len(data), again.Len(), "bytes were left out")
		}
	})
}

type discarding struct {
	net.Conn
	io.Writer
}

func (d discarding) Write(p []byte) (int, error) { return d.Writer.Write(p) }

// saying gives listen a connection whose other end says this and hangs up.
func saying(what []byte, listen func(net.Conn) error) error {
	near, far := net.Pipe()
	defer near.Close()
	go func() { _, _ = io.Copy(io.Discard, far) }() // a pipe has no room of its own
	go func() {
		_, _ = far.Write(what)
		_ = far.Close()
	}()
	return listen(near)
}
