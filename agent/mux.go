package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/relay"
)

// Mux makes many streams of one that ends at the agent's relay.
type Mux struct{ sess *yamux.Session }

// NewMux begins multiplexing over a stream, which the Mux then owns.
func NewMux(stream io.ReadWriteCloser) (*Mux, error) {
	sess, err := yamux.Client(stream, relay.Config())
	if err != nil {
		return nil, fmt.Errorf("begin multiplexing: %w", err)
	}
	return &Mux{sess: sess}, nil
}

// Dial opens a stream to the agent; it serves as Options.Dial.
func (m *Mux) Dial(ctx context.Context) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	st, err := m.sess.OpenStream()
	if err != nil {
		return nil, err
	}
	return muxConn{st}, nil
}

// muxConn ends reads that are under way when it is closed, as a socket does. A
// stream alone waits for the other side to close too, which a paused sandbox does not.
type muxConn struct{ *yamux.Stream }

func (c muxConn) Close() error {
	_ = c.SetReadDeadline(time.Now())
	return c.Stream.Close()
}

// Done is closed when the stream below has ended.
func (m *Mux) Done() <-chan struct{} { return m.sess.CloseChan() }

// Close ends all streams and the one below. Idempotent.
func (m *Mux) Close() error { return m.sess.Close() }
