package opensandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// maxOwnBody is how long a request may be that is written before its answer is looked at: both ends' buffers hold it.
	maxOwnBody = 32 << 10
	// maxAnswerHead bounds the head of an answer: it may come from a sandbox.
	maxAnswerHead = 1 << 20
)

// commandConns makes requests in the goroutine that asks for them, each on a connection that nobody else touches
// meanwhile. An http.Transport has two goroutines for each connection; to hand them a short command and to be handed
// its answer takes as long as all else that is done for it here.
//
// What it does not know it leaves to a transport: encryption, proxies, long requests and unusual heads.
type commandConns struct {
	transport  http.RoundTripper
	proxy      func(*http.Request) (*url.URL, error)
	dial       func(ctx context.Context, network, address string) (net.Conn, error)
	idleFor    time.Duration // how long an unused connection is kept
	maxIdle    int           // how many of those there are
	maxPerHost int

	mu     sync.Mutex
	idle   map[string][]*commandConn // by address, the one that was used last at the end
	kept   int                       // how many that are
	sweep  *time.Timer               // nil while there is no idle one
	closed bool
}

// commandConn is one connection.
type commandConn struct {
	net.Conn
	address string
	limit   io.LimitedReader // what may still be read; reads from Conn
	in      *bufio.Reader    // reads from limit
	out     *bufio.Writer
	used    bool      // for an earlier request
	sent    bool      // something of this one has left
	since   time.Time // when it became idle
}

// RoundTrip implements http.RoundTripper.
func (p *commandConns) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "http" || req.Body == nil || req.ContentLength <= 0 || req.ContentLength > maxOwnBody || !plainHead(req) {
		return p.transport.RoundTrip(req)
	}
	if via, err := p.proxy(req); via != nil || err != nil {
		return p.transport.RoundTrip(req)
	}
	for {
		c, err := p.take(req.Context(), addressOf(req.URL))
		if err != nil {
			_ = req.Body.Close()
			return nil, err
		}
		release := context.AfterFunc(req.Context(), func() { _ = c.Close() })
		res, err := c.exchange(req)
		if err == nil {
			res.Body = &ownBody{pool: p, conn: c, release: release, reusable: !res.Close, rest: res.Body}
			return res, nil
		}
		release()
		_ = c.Close()
		if !c.used || c.sent || req.GetBody == nil || req.Context().Err() != nil {
			return nil, err
		}
		// The other end has given up an idle connection just now: nothing of the request has left.
		again := *req
		if again.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
		req = &again
	}
}

// Write implements io.Writer.
func (c *commandConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.sent = c.sent || n > 0
	return n, err
}

// exchange sends a request and reads the head of its answer.
func (c *commandConn) exchange(req *http.Request) (*http.Response, error) {
	if err := c.send(req); err != nil {
		return nil, err
	}
	c.limit.N = maxAnswerHead // also for all that come before it
	for {
		res, err := http.ReadResponse(c.in, req)
		if err != nil {
			if c.limit.N <= 0 {
				err = fmt.Errorf("the head of the answer is longer than %d bytes", maxAnswerHead)
			}
			return nil, err
		}
		if res.StatusCode >= 200 {
			c.limit.N = math.MaxInt64
			return res, nil
		}
	}
}

// send writes a request.
func (c *commandConn) send(req *http.Request) error {
	_, err := c.out.Write(appendHead(c.out.AvailableBuffer(), req))
	if err == nil {
		_, err = io.CopyN(c.out, req.Body, req.ContentLength)
	}
	if cerr := req.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return c.out.Flush()
}

// take gives a connection to an address, an idle one when there is one that still lives.
func (p *commandConns) take(ctx context.Context, address string) (*commandConn, error) {
	for c := p.pop(address); c != nil; c = p.pop(address) {
		if c.alive() {
			return c, nil
		}
		_ = c.Close()
	}
	conn, err := p.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &commandConn{Conn: conn, address: address}
	c.out = bufio.NewWriter(c)
	c.limit = io.LimitedReader{R: conn, N: math.MaxInt64}
	c.in = bufio.NewReader(&c.limit)
	return c, nil
}

func (p *commandConns) pop(address string) *commandConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.idle[address]
	if len(all) == 0 {
		return nil
	}
	last := len(all) - 1
	c := all[last]
	all[last] = nil
	p.idle[address] = all[:last]
	p.kept--
	return c
}

// put keeps a connection for the next request.
func (p *commandConns) put(c *commandConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.idle[c.address]
	if p.closed || p.kept >= p.maxIdle || len(all) >= p.maxPerHost {
		_ = c.Close()
		return
	}
	c.since, c.used, c.sent = time.Now(), true, false
	if p.idle == nil {
		p.idle = map[string][]*commandConn{}
	}
	p.idle[c.address] = append(all, c)
	p.kept++
	if p.sweep == nil {
		p.sweep = time.AfterFunc(p.idleFor, p.expire)
	}
}

// expire closes what has been idle for long, and comes again as long as there is something left.
func (p *commandConns) expire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	now, oldest := time.Now(), time.Time{}
	for address, all := range p.idle {
		for len(all) > 0 && now.Sub(all[0].since) >= p.idleFor {
			_ = all[0].Close()
			all[0] = nil
			all = all[1:]
			p.kept--
		}
		if len(all) == 0 {
			delete(p.idle, address)
			continue
		}
		p.idle[address] = all
		if oldest.IsZero() || all[0].since.Before(oldest) {
			oldest = all[0].since
		}
	}
	if oldest.IsZero() {
		p.sweep = nil
		return
	}
	p.sweep.Reset(max(oldest.Add(p.idleFor).Sub(now), time.Millisecond))
}

// close closes all that is idle. What is in use is closed when it has been used.
func (p *commandConns) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.sweep != nil {
		p.sweep.Stop()
	}
	for _, all := range p.idle {
		for _, c := range all {
			_ = c.Close()
		}
	}
	p.idle, p.kept = nil, 0
}

// alive tells whether the other end has left an idle connection as it was: it has neither closed it nor sent anything.
func (c *commandConn) alive() bool {
	s, ok := c.Conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = errors.Is(err, syscall.EAGAIN)
		return true
	})
	return err == nil && quiet
}

// ownBody is the body of an answer. At its end, and not before, the connection is free.
type ownBody struct {
	pool     *commandConns
	conn     *commandConn
	release  func() bool // ends the request's hold on the connection; false when it has closed it
	reusable bool
	rest     io.Reader
	state    atomic.Int32
}

const (
	bodyComing int32 = iota
	bodyEnded
	bodyClosed // before its end
)

// Read implements io.Reader.
func (b *ownBody) Read(p []byte) (int, error) {
	switch b.state.Load() {
	case bodyEnded:
		return 0, io.EOF
	case bodyClosed:
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := b.rest.Read(p)
	if errors.Is(err, io.EOF) && b.state.CompareAndSwap(bodyComing, bodyEnded) {
		if b.release() && b.reusable && b.conn.in.Buffered() == 0 {
			b.pool.put(b.conn)
		} else {
			_ = b.conn.Close()
		}
	}
	return n, err
}

// Close implements io.Closer. What has not been read goes with the connection.
func (b *ownBody) Close() error {
	if b.state.CompareAndSwap(bodyComing, bodyClosed) {
		b.release()
		_ = b.conn.Close()
	}
	return nil
}

// ended tells whether all has been read.
func (b *ownBody) ended() bool { return b.state.Load() == bodyEnded }

// addressOf is where the host of a URL without encryption is dialed.
func addressOf(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), "80")
}
