package opensandbox

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// daemonConn is a connection that a test's server has taken.
type daemonConn struct {
	net.Conn
	in *bufio.Reader
}

// request reads one request, and gives its body.
func (c *daemonConn) request(t *testing.T) string {
	t.Helper()
	req, err := http.ReadRequest(c.in)
	require.NoError(t, err)
	body, err := io.ReadAll(req.Body)
	require.NoError(t, err)
	return string(body)
}

func (c *daemonConn) say(t *testing.T, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

// gone waits until the other end has closed.
func (c *daemonConn) gone(t *testing.T) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := c.in.ReadByte()
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("the connection is not closed: %v", err)
	}
}

// open tells whether the other end has not closed.
func (c *daemonConn) open(t *testing.T) bool {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err := c.in.Peek(1)
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// listening gives a server's URL and its connections.
func listening(t *testing.T) (string, <-chan *daemonConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	taken := make(chan *daemonConn, 16)
	go func() {
		defer close(taken)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			taken <- &daemonConn{c, bufio.NewReader(c)}
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		for c := range taken {
			_ = c.Close()
		}
	})
	return "http://" + l.Addr().String(), taken
}

// refusing is a transport that must not be used.
type refusing struct{ t *testing.T }

func (r refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	r.t.Errorf("the transport was asked for %s", req.URL)
	return nil, errors.New("not here")
}

func newCommandConns(t *testing.T) *commandConns {
	p := &commandConns{
		transport: refusing{t}, proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
		dial: (&net.Dialer{}).DialContext, idleFor: time.Hour, maxIdle: 3, maxPerHost: 2,
	}
	t.Cleanup(p.close)
	return p
}

func post(ctx context.Context, p *commandConns, url, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/command", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return (&http.Client{Transport: p}).Do(req)
}

// posted makes a request in the background.
func posted(ctx context.Context, p *commandConns, url, body string) <-chan error {
	over := make(chan error, 1)
	go func() {
		res, err := post(ctx, p, url, body)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		over <- err
	}()
	return over
}

// answered makes a request and answers it; gives its connection, which is idle then.
func answered(t *testing.T, p *commandConns, url string, taken <-chan *daemonConn) *daemonConn {
	t.Helper()
	over := posted(t.Context(), p, url, "one")
	c := <-taken
	c.request(t)
	c.say(t, hello)
	require.NoError(t, <-over)
	return c
}

const (
	chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	hello   = chunked + "5\r\nhello\r\n0\r\n\r\n"
)

func TestACommandsConnectionIsUsedAgain(t *testing.T) {
	url, taken := listening(t)
	p := newCommandConns(t)
	first := posted(t.Context(), p, url, "one")
	c := <-taken
	require.Equal(t, "one", c.request(t))
	c.say(t, "HTTP/1.1 102 Processing\r\n\r\n"+hello)
	require.NoError(t, <-first)
	second := posted(t.Context(), p, url, "two")
	require.Equal(t, "two", c.request(t))
	c.say(t, "HTTP/1.1 204 No Content\r\n\r\n")
	require.NoError(t, <-second)
	p.close()
	c.gone(t)
	require.Empty(t, taken)

	// A command that comes later, or was on its way, leaves none behind.
	answered(t, p, url, taken).gone(t)
}

func TestACommandsConnectionIsNotUsedAgain(t *testing.T) {
	for name, answer := range map[string]string{
		"that is to be closed":         "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx",
		"of an older protocol":         "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx",
		"with more than was asked for": hello + "HTTP/1.1 200 OK\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			url, taken := listening(t)
			p := newCommandConns(t)
			over := posted(t.Context(), p, url, "one")
			c := <-taken
			c.request(t)
			c.say(t, answer)
			require.NoError(t, <-over)
			c.gone(t)
		})
	}
}

func TestAnAnswerThatIsNotReadEndsItsConnection(t *testing.T) {
	url, taken := listening(t)
	p := newCommandConns(t)
	over := make(chan error, 1)
	var res *http.Response
	go func() {
		var err error
		res, err = post(t.Context(), p, url, "one")
		over <- err
	}()
	c := <-taken
	c.request(t)
	c.say(t, hello)
	require.NoError(t, <-over)
	require.NoError(t, res.Body.Close())
	require.NoError(t, res.Body.Close())
	_, err := res.Body.Read(make([]byte, 1))
	require.ErrorIs(t, err, http.ErrBodyReadAfterClose)
	c.gone(t)
}

// A daemon that was closed, or says what nobody asked for, is not given a command on that connection.
func TestAnIdleConnectionThatHasChangedIsLeft(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, c *daemonConn){
		"closed": func(t *testing.T, c *daemonConn) { require.NoError(t, c.Close()) },
		"spoken": func(t *testing.T, c *daemonConn) { c.say(t, "HTTP/1.1 408 Request Timeout\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			url, taken := listening(t)
			p := newCommandConns(t)
			c := answered(t, p, url, taken)
			idle := p.pop(strings.TrimPrefix(url, "http://"))
			require.True(t, idle.alive())
			change(t, c)
			require.Eventually(t, func() bool { return !idle.alive() }, 10*time.Second, time.Millisecond)
			p.put(idle)
			answered(t, p, url, taken)
		})
	}
}

// deaf refuses what is written to it from some time on.
type deaf struct {
	net.Conn
	shut atomic.Bool
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.shut.Load() {
		return 0, syscall.EPIPE
	}
	return d.Conn.Write(p)
}

func (d *deaf) SyscallConn() (syscall.RawConn, error) { return d.Conn.(syscall.Conn).SyscallConn() }

func TestARequestOfWhichNothingHasLeftIsMadeAgain(t *testing.T) {
	url, taken := listening(t)
	p := newCommandConns(t)
	var last *deaf
	p.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		last = &deaf{Conn: c}
		return last, err
	}
	c := answered(t, p, url, taken)
	last.shut.Store(true)
	over := posted(t.Context(), p, url, "two")
	c.gone(t)
	c = <-taken
	require.Equal(t, "two", c.request(t))
	c.say(t, hello)
	require.NoError(t, <-over)

	// On a connection that was never used it is an error.
	p.close()
	p.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		last = &deaf{Conn: c}
		last.shut.Store(true)
		return last, err
	}
	_, err := post(t.Context(), p, url, "three")
	require.ErrorIs(t, err, syscall.EPIPE)
}

func TestARequestThatHasLeftIsNotMadeAgain(t *testing.T) {
	url, taken := listening(t)
	p := newCommandConns(t)
	c := answered(t, p, url, taken)
	over := posted(t.Context(), p, url, "two")
	require.Equal(t, "two", c.request(t))
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-over, io.ErrUnexpectedEOF)
	require.Empty(t, taken)
}

func TestTheEndOfAContextEndsItsCommandsConnection(t *testing.T) {
	for name, answer := range map[string]string{"before the answer": "", "in the head": "HTTP/1.1 200 OK\r\nX-", "in the body": chunked + "5\r\nhe"} {
		t.Run(name, func(t *testing.T) {
			url, taken := listening(t)
			p := newCommandConns(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			over := posted(ctx, p, url, "one")
			c := <-taken
			c.request(t)
			c.say(t, answer)
			cancel()
			require.Error(t, <-over)
			c.gone(t)
		})
	}
	// Also while it connects.
	p := newCommandConns(t)
	ctx, cancel := context.WithCancel(t.Context())
	p.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
		cancel()
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Err: ctx.Err()}
	}
	require.ErrorIs(t, <-posted(ctx, p, "http://127.0.0.1:1", "one"), context.Canceled)
}

func TestUnusedConnectionsOfCommandsAreClosed(t *testing.T) {
	url, taken := listening(t)
	p := newCommandConns(t)
	p.idleFor = 20 * time.Millisecond
	for range 2 { // also those that come when there was nothing left
		c := answered(t, p, url, taken)
		c.gone(t)
	}

	p = newCommandConns(t)
	var all []*daemonConn
	var ends []<-chan error
	for range 3 {
		ends = append(ends, posted(t.Context(), p, url, "one"))
		all = append(all, <-taken)
	}
	for i, c := range all {
		c.request(t)
		c.say(t, hello)
		require.NoError(t, <-ends[i])
	}
	all[2].gone(t) // two are kept
	for range 2 {
		url, taken := listening(t)
		all = append(all, answered(t, p, url, taken))
	}
	all[4].gone(t) // and one more of all others
	for _, i := range []int{0, 1, 3} {
		require.True(t, all[i].open(t))
	}
	p.close()
	for _, i := range []int{0, 1, 3} {
		all[i].gone(t)
	}
}

func TestTheHeadOfAnAnswerIsBounded(t *testing.T) {
	for name, way := range map[string]struct{ first, more string }{
		"one that is long":      {"HTTP/1.1 200 OK\r\n", "X-More: " + strings.Repeat("x", 1000) + "\r\n"},
		"more and more of them": {"", "HTTP/1.1 102 Processing\r\n\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			url, taken := listening(t)
			p := newCommandConns(t)
			over := posted(t.Context(), p, url, "one")
			c := <-taken
			c.request(t)
			c.say(t, way.first)
			for {
				if _, err := io.WriteString(c, way.more); err != nil {
					break
				}
			}
			require.ErrorContains(t, <-over, "the head of the answer is longer than")
		})
	}
}

// What the short way does not know takes the usual one.
func TestOtherCommandsTakeTheTransport(t *testing.T) {
	var via string
	for name, change := range map[string]func(p *commandConns, req *http.Request){
		"encrypted":                func(_ *commandConns, req *http.Request) { req.URL.Scheme = "https" },
		"long":                     func(_ *commandConns, req *http.Request) { req.ContentLength = maxOwnBody + 1 },
		"of unknown size":          func(_ *commandConns, req *http.Request) { req.ContentLength = -1 },
		"with no body":             func(_ *commandConns, req *http.Request) { req.Body, req.ContentLength = nil, 0 },
		"with two lines":           func(_ *commandConns, req *http.Request) { req.Header.Set("X-A", "a\r\nX-B: b") },
		"with a host that is none": func(_ *commandConns, req *http.Request) { req.Host = "a b" },
		"with a name that is none": func(_ *commandConns, req *http.Request) { req.Header["X A"] = []string{"a"} },
		"to be framed otherwise":   func(_ *commandConns, req *http.Request) { req.Header.Set("Transfer-Encoding", "chunked") },
		"through a proxy": func(p *commandConns, _ *http.Request) {
			p.proxy = func(*http.Request) (*url.URL, error) { return &url.URL{Scheme: "http", Host: "proxy"}, nil }
		},
		"with a broken proxy": func(p *commandConns, _ *http.Request) {
			p.proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("broken") }
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newCommandConns(t)
			via = ""
			p.transport = roundTripper(func(req *http.Request) (*http.Response, error) {
				via = req.URL.Scheme
				return nil, errors.New("enough")
			})
			req, err := http.NewRequest(http.MethodPost, "http://127.0.0.1:1/command", strings.NewReader("x"))
			require.NoError(t, err)
			change(p, req)
			_, err = p.RoundTrip(req)
			require.EqualError(t, err, "enough")
			require.NotEmpty(t, via)
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// The short way's head is the usual one.
func TestTheHeadOfACommandIsTheUsualOne(t *testing.T) {
	req, err := http.NewRequest(http.MethodPost, "http://127.0.0.1:44772/proxy/1/command?a=b%20c", strings.NewReader("{}"))
	require.NoError(t, err)
	req.Header = http.Header{"X-Execd-Access-Token": {"secret"}, "Accept": {"text/event-stream", "*/*"}, "Open_Sandbox": {""}}
	for range 2 {
		var usual strings.Builder
		again := req.Clone(t.Context())
		again.Body, err = req.GetBody()
		require.NoError(t, err)
		require.NoError(t, again.Write(&usual))
		require.True(t, plainHead(req))
		want, err := http.ReadRequest(bufio.NewReader(strings.NewReader(usual.String())))
		require.NoError(t, err)
		got, err := http.ReadRequest(bufio.NewReader(strings.NewReader(string(appendHead(nil, req)) + "{}")))
		require.NoError(t, err)
		for _, r := range []*http.Request{want, got} {
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, "{}", string(body))
			r.Body = nil
		}
		require.Equal(t, want, got)
		req.Header.Set("User-Agent", "somebody")
	}
}

// An encrypted daemon's commands run all the same.
func TestCommandsOverTLS(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "hello")
	}))
	defer server.Close()
	p := newCommandConns(t)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}
	defer transport.CloseIdleConnections()
	p.transport = transport
	require.NoError(t, <-posted(t.Context(), p, server.URL, "one"))
}
