package opensandbox

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	headerAPIKey = "OPEN-SANDBOX-API-KEY"
	headerToken  = "X-EXECD-ACCESS-TOKEN"

	// maxAnswer bounds an answer that is read as a whole: it may come from a sandbox.
	maxAnswer = 4 << 20
	// throttled is how often a request is repeated that the server had no time for.
	throttled = 3
	// longestThrottle bounds a wait that a server asks for.
	longestThrottle = 10 * time.Minute
)

// restClient makes requests. All sandboxes of a provider share its connections.
type restClient struct {
	http           *http.Client
	commandConns   *commandConns // for commands: they are short, and many; nil: they go like the others
	connections    *connections
	base           string
	key            string
	timeout        time.Duration
	connectRetries int
}

func newRestClient(c connectionConfig) *restClient {
	dialer := &net.Dialer{Timeout: c.requestTimeout(), KeepAlive: 15 * time.Second}
	t := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: c.requestTimeout(),
		// Answers are counted in bytes: a download's length has to be the file's.
		DisableCompression: true,
		// Shorter than servers keep theirs: a request must not meet a connection that is just being closed.
		IdleConnTimeout:     10 * time.Second,
		MaxIdleConns:        1024,
		MaxIdleConnsPerHost: 256,
		TLSClientConfig:     tlsConfig(c),
	}
	pool := &connections{transport: t}
	r := &restClient{connections: pool, base: c.base(), key: *c.APIKey, timeout: c.requestTimeout()}
	if c.TransportBackend == backendHTTPX {
		t.DisableKeepAlives = c.DisableConnectionPooling || c.MaxKeepaliveConnections == 0 || c.KeepaliveExpiryS == 0
		t.IdleConnTimeout = seconds(c.KeepaliveExpiryS)
		t.MaxIdleConns, t.MaxIdleConnsPerHost = c.MaxKeepaliveConnections, c.MaxKeepaliveConnections
		t.MaxConnsPerHost = c.MaxConnections
		r.connectRetries = c.ConnectRetries
	}
	r.http = &http.Client{
		Transport:     pool,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if c.TransportBackend != backendHTTPX { // whose limits are the transport's
		r.commandConns = &commandConns{
			transport: pool, proxy: t.Proxy, dial: t.DialContext, idleFor: t.IdleConnTimeout,
			maxIdle: t.MaxIdleConns, maxPerHost: t.MaxIdleConnsPerHost,
		}
	}
	return r
}

func (r *restClient) close() {
	r.connections.close()
	if r.commandConns != nil {
		r.commandConns.close()
	}
}

func tlsConfig(c connectionConfig) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: !c.TLSVerify}
}

// call is one request. Exactly one of json, and stream with length, may hold a body.
type call struct {
	method string
	url    string
	header http.Header
	json   any
	// command: it runs a command, and may take the short way of commandConns.
	command bool
	// stream is a body that can be sent only once; length is its size.
	stream      io.Reader
	length      int64
	contentType string
	timeout     time.Duration // for the whole of it; 0: the client's, negative: none but the context's
}

// send makes a request and gives its answer, whatever its status, with the body
// still to be read. Of a request that had to wait its turn (429) it gives the last answer, without the waiting when there
// is no time for another one: what the server said is worth more than that time ran out.
func (r *restClient) send(ctx context.Context, c call) (*http.Response, error) {
	var body []byte
	if c.json != nil {
		var err error
		if body, err = json.Marshal(c.json); err != nil {
			return nil, err
		}
	}
	for attempt := 0; ; attempt++ {
		res, err := r.sendOnce(ctx, c, body)
		if err != nil || res.StatusCode != http.StatusTooManyRequests || attempt == throttled || c.stream != nil {
			return res, err
		}
		wait := retryAfter(res.Header.Get("Retry-After"), time.Second<<attempt)
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= wait {
			return res, nil
		}
		_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
		_ = res.Body.Close()
		if !pause(ctx, wait) {
			return nil, &transportError{what: "gave up", err: context.Cause(ctx)}
		}
	}
}

func (r *restClient) sendOnce(ctx context.Context, c call, body []byte) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		var rd io.Reader = c.stream
		if body != nil {
			rd = bytes.NewReader(body)
		}
		req, err := http.NewRequestWithContext(ctx, c.method, c.url, rd)
		if err != nil {
			return nil, &transportError{what: "bad URL", err: err}
		}
		for k, v := range c.header {
			req.Header[k] = v
		}
		if parent := core.Traceparent(ctx); parent != "" {
			req.Header.Set("traceparent", parent)
		}
		switch {
		case body != nil:
			req.Header.Set("Content-Type", "application/json")
		case c.stream != nil:
			req.ContentLength = c.length
			req.Header.Set("Content-Type", c.contentType)
		}
		do := r.http.Do
		if c.command && r.commandConns != nil && req.URL.User == nil { // an http.Client would add no more than the user
			do = r.commandConns.RoundTrip
		}
		res, err := do(req)
		if err == nil {
			return res, nil
		}
		failed := sendFailed(ctx, err)
		if failed.unsent && attempt < r.connectRetries && c.stream == nil && ctx.Err() == nil {
			continue
		}
		return nil, failed
	}
}

// do makes a request, and reads its answer as JSON into out unless that is nil. An answer
// other than success is an *apiError.
func (r *restClient) do(ctx context.Context, c call, out any) (http.Header, error) {
	limit := c.timeout
	if limit == 0 {
		limit = r.timeout
	}
	ctx, cancel := bounded(ctx, limit, "waiting for an answer to "+c.method+" "+pathOf(c.url))
	defer cancel()
	res, err := r.send(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	p, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	if res.StatusCode/100 != 2 {
		return res.Header, newAPIError(res, p)
	}
	if err != nil {
		return res.Header, readFailed(ctx, err)
	}
	if len(p) > maxAnswer {
		return res.Header, fmt.Errorf("the answer to %s %s is longer than %d bytes", c.method, pathOf(c.url), maxAnswer)
	}
	if out == nil {
		return res.Header, nil
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = p
		return res.Header, nil
	}
	if err := json.Unmarshal(p, out); err != nil {
		return res.Header, fmt.Errorf("the answer to %s %s makes no sense: %w", c.method, pathOf(c.url), err)
	}
	return res.Header, nil
}

// pathOf is what of a URL may stand in a message: no host's user, no query.
func pathOf(u string) string {
	if _, rest, ok := strings.Cut(u, "://"); ok {
		u = rest
	}
	if at := strings.IndexByte(u, '/'); at >= 0 {
		u = u[at:]
	}
	u, _, _ = strings.Cut(u, "?")
	return u
}

// retryAfter reads how long a server wants to be left alone: seconds, or a date.
func retryAfter(header string, otherwise time.Duration) time.Duration {
	header = strings.TrimSpace(header)
	if header == "" {
		return otherwise
	}
	if n, err := strconv.ParseInt(header, 10, 64); err == nil {
		return min(time.Duration(min(max(n, 0), int64(longestThrottle/time.Second)))*time.Second, longestThrottle)
	}
	if at, err := http.ParseTime(header); err == nil {
		return min(max(time.Until(at), 0), longestThrottle)
	}
	return otherwise
}

// transportError is a request that got no answer, or not the whole of it.
type transportError struct {
	what    string // the kind of failure
	err     error
	unsent  bool // the request has not reached a server
	timeout bool // this side gave up waiting
}

func (e *transportError) Error() string {
	if e.err == nil {
		return e.what
	}
	return e.what + ": " + e.err.Error()
}

func (e *transportError) Unwrap() error { return e.err }

// sendFailed tells what went wrong before the head of the answer came.
func sendFailed(ctx context.Context, err error) *transportError {
	var op *net.OpError
	dial := errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect")
	var timeout interface{ Timeout() bool }
	late := errors.As(err, &timeout) && timeout.Timeout()
	switch {
	case ctx.Err() != nil:
		return &transportError{what: "gave up", err: context.Cause(ctx), unsent: dial, timeout: errors.Is(ctx.Err(), context.DeadlineExceeded)}
	case dial && op.Op == "proxyconnect":
		return &transportError{what: "proxy error", err: err, unsent: true}
	case dial && late:
		return &transportError{what: "connect timeout", err: err, unsent: true, timeout: true}
	case dial:
		return &transportError{what: "connection error", err: err, unsent: true}
	case late:
		return &transportError{what: "read timeout", err: err, timeout: true}
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return &transportError{what: "server disconnected", err: err}
	}
	return &transportError{what: "connection error", err: err}
}

// readFailed tells what went wrong while the body of the answer came.
func readFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &transportError{what: "gave up", err: context.Cause(ctx), timeout: errors.Is(ctx.Err(), context.DeadlineExceeded)}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &transportError{what: "incomplete chunked read", err: err}
	}
	return &transportError{what: "read error", err: err}
}
