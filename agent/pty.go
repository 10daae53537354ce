package agent

import (
	"context"
	"errors"
	"net"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty"
)

// OpenPTY starts a terminal session in the sandbox. It lives there until it is
// closed or its process ends, whatever becomes of this client.
func (c *Client) OpenPTY(ctx context.Context, spec core.PTYSpec) (core.PTYSession, error) {
	s, err := c.terminals().Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// AttachPTY connects to a session that this or another client opened; see core.PTYAttacher.
func (c *Client) AttachPTY(ctx context.Context, id string, takeover bool, since int64) (core.PTYSession, error) {
	s, err := c.terminals().Attach(ctx, id, takeover, since)
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (c *Client) terminals() *pty.Client {
	return &pty.Client{
		URL:       "http://sandbox", // the name is not looked up: streams lead to one agent only
		Dial:      c.dialHTTP,
		Provider:  c.o.Provider,
		SandboxID: c.o.SandboxID,
		Diagnose:  c.gone,
		Silent:    c.still,
		Flow:      true,
	}
}

// dialHTTP gives a stream that carries HTTP.
func (c *Client) dialHTTP(ctx context.Context) (net.Conn, error) {
	st, err := c.begin(ctx, wire.Req{Op: wire.OpHTTP})
	if err != nil {
		return nil, err
	}
	return httpConn{st.Conn, func() { c.pool.drop(st) }}, nil
}

// httpConn is a stream that will never be the pool's again.
type httpConn struct {
	net.Conn
	drop func()
}

// Plain implements the wrapper of package pty's connections: nothing is done to the bytes.
func (c httpConn) Plain() net.Conn { return c.Conn }

func (c httpConn) Close() error {
	c.drop()
	return nil
}

// gone tells why terminal sessions can't be reached any more, nil when they may be.
func (c *Client) gone(ctx context.Context) error {
	ended := c.Farewell() != ""
	select {
	case <-c.lost:
		ended = true
	default:
	}
	if ended {
		return errors.New(c.why(ctx))
	}
	switch d := c.diagnose(ctx); d.Status {
	case core.StatusStopped, core.StatusError:
		return errors.New(d.Reason)
	}
	return nil
}
