package opensandbox

import (
	"net/http"
	"sync/atomic"
)

// connections makes requests on connections that are kept for the next one until it is
// closed. Requests that are under way then, or come later, do not leave theirs behind: an
// http.Transport goes on keeping them with the first request after CloseIdleConnections.
type connections struct {
	transport *http.Transport
	closed    atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (c *connections) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := c.transport.RoundTrip(req)
	if c.closed.Load() {
		c.transport.CloseIdleConnections() // also those that become idle later
	}
	return res, err
}

func (c *connections) close() {
	c.closed.Store(true)
	c.transport.CloseIdleConnections()
}
