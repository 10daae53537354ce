package pty

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// Client makes sessions on one server and connects to them. Its fields are set
// before its first use; then it is safe for concurrent use.
type Client struct {
	// URL is where the server's routes begin, for example "http://sandbox": no slash at the end.
	URL string
	// Header goes with every request.
	Header http.Header
	// Dial opens connections to the server; nil dials the URL's host.
	Dial func(ctx context.Context) (net.Conn, error)
	// Provider and SandboxID name the sandbox in messages.
	Provider, SandboxID string
	// Diagnose, when set, is asked when a connection is lost for no stated
	// reason. Its error tells that the sandbox can't be reached any more.
	Diagnose func(ctx context.Context) error
	// Silent, when set, is asked now and then about a server that does not answer a request. Its error, such as that the
	// sandbox stands still, ends the request.
	Silent func(ctx context.Context) error
	// Yield, when set, is told before a session is taken over that this process is about to do so. What it holds
	// of it already is then better detached than evicted: its user can come back to it.
	Yield func(ctx context.Context, id string) error
	// Pipes: a session that was made elsewhere, and not started yet, is started with pipes when it is attached to.
	Pipes bool
	// RestartsEnded: the server starts a session's process again when somebody
	// attaches after its end. The client then looks before it comes back.
	RestartsEnded bool
	// Timeout bounds each request, and each try to attach, up to the server's greeting; 0 is 300 s.
	Timeout time.Duration
	// Flow asks the server to tell what has arrived, and to be told, where it can. Then
	// nothing is lost with a connection, in either direction.
	Flow bool

	times clientTimes
}

// clientTimes relate to the server's: it takes silence for death after 60 s.
type clientTimes struct {
	retry    []time.Duration // between tries to connect
	refused  []time.Duration // between tries to take over
	ping     time.Duration
	silence  time.Duration // without any message the connection is dead: a ping and half the time to the next
	request  time.Duration // bound of one request
	answer   time.Duration // how long a server is waited for before Silent is asked
	diagnose time.Duration
	settled  time.Duration // a connection that held so long was a good one
	quiet    time.Duration // a detached command is left alone after that
}

var standard = clientTimes{
	retry:    []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second},
	refused:  []time.Duration{2 * time.Second, 5 * time.Second, 10 * time.Second},
	ping:     30 * time.Second,
	silence:  45 * time.Second,
	request:  300 * time.Second,
	answer:   time.Second,
	diagnose: 8 * time.Second,
	settled:  10 * time.Second,
	quiet:    time.Second,
}

func (c *Client) t() *clientTimes {
	if c.times.retry == nil {
		return &standard
	}
	return &c.times
}

// request is how long the server has to answer.
func (c *Client) request() time.Duration {
	if c.Timeout > 0 {
		return c.Timeout
	}
	return c.t().request
}

// Open makes a session and attaches to it. It returns when the process has been started.
func (c *Client) Open(ctx context.Context, spec core.PTYSpec) (*Session, error) {
	if err := spec.Validate(); err != nil {
		return nil, c.named("pty create", err)
	}
	var made proto.Created
	body := proto.Create{Cwd: spec.Cwd, Command: spec.Command, Env: spec.Env, User: spec.User, Rows: spec.Rows, Cols: spec.Cols}
	status, err := c.call(ctx, http.MethodPost, "/pty", body, &made, c.t().retry)
	if err != nil {
		return nil, c.failed(ctx, "pty create", "PTY create failed", err)
	}
	if status != http.StatusCreated && status != http.StatusOK || made.SessionID == "" {
		return nil, c.errorf("pty create", "PTY create failed: the server's answer (HTTP %d) names no session", status)
	}
	s := newSession(c, made.SessionID, true)
	if err := s.begin(ctx, "pty create", dialOptions{pipe: spec.NoTerminal}); err != nil {
		s.abort()
		return nil, err
	}
	sized := made.Rows == spec.Rows && made.Cols == spec.Cols || spec.Rows == defaultRows && spec.Cols == defaultCols
	if !spec.NoTerminal && !sized {
		if err := s.Resize(ctx, spec.Rows, spec.Cols); err != nil {
			s.abort()
			return nil, err
		}
	}
	return s, nil
}

const (
	defaultRows = 24
	defaultCols = 80
)

// Attach connects to a session that was made earlier, here or elsewhere. takeover
// evicts its holder, whose session then fails; without it a held session refuses.
// Output from the byte offset since on is replayed first, as far as it is retained.
func (c *Client) Attach(ctx context.Context, id string, takeover bool, since int64) (*Session, error) {
	if since < 0 {
		return nil, c.named("pty attach", core.Errorf(core.KindInvalid, "", "since is an offset in bytes and can't be negative"))
	}
	if id == "" {
		return nil, c.named("pty attach", core.Errorf(core.KindInvalid, "", "the session's id is empty"))
	}
	// A proxy may answer the websocket's handshake in its own words; this one is plain.
	info, err := c.info(ctx, id)
	var g *goneError
	switch {
	case errors.As(err, &g):
		return nil, c.failed(ctx, "pty attach", "Failed to attach to PTY session "+id, err)
	case isStatus(err, http.StatusNotFound, proto.CodeNotFound):
		return nil, c.notFound("pty attach", id)
	case err == nil && c.RestartsEnded && !info.Running && info.OutputOffset > 0:
		return nil, c.errorf("pty attach", "PTY session %s has ended: attaching to it would run its command again", id)
	case err == nil && c.Flow:
		// From beyond the end on, what comes would be counted wrongly, and a later attach would miss some of it.
		since = min(since, info.OutputOffset)
	}
	if takeover && c.Yield != nil {
		if err := c.Yield(ctx, id); err != nil {
			return nil, c.named("pty attach", err)
		}
	}
	s := newSession(c, id, false)
	s.received = since
	if err := s.begin(ctx, "pty attach", dialOptions{pipe: c.Pipes, takeover: takeover}); err != nil {
		s.abort()
		return nil, err
	}
	return s, nil
}

// info asks for a session's state.
func (c *Client) info(ctx context.Context, id string) (proto.Info, error) {
	var info proto.Info
	_, err := c.call(ctx, http.MethodGet, "/pty/"+url.PathEscape(id), nil, &info, nil)
	return info, err
}

// dialOptions is what a websocket's query says.
type dialOptions struct {
	first    bool // nobody has been attached to the session here before
	pipe     bool
	takeover bool
	since    int64
	flow     bool
	holder   string // who asks
	back     bool   // after a lost connection, and not if somebody else has taken over since
}

func (o dialOptions) query() string {
	var q []string
	if o.pipe {
		q = append(q, "pty=0")
	}
	if o.takeover {
		q = append(q, "takeover=1")
	}
	if o.since > 0 {
		q = append(q, "since="+strconv.FormatInt(o.since, 10))
	}
	if o.flow {
		q = append(q, "flow=1", "holder="+o.holder)
		if o.back {
			q = append(q, "back=1")
		}
	}
	if q == nil {
		return ""
	}
	return "?" + strings.Join(q, "&")
}

// dial opens a session's websocket.
func (c *Client) dial(ctx context.Context, id string, o dialOptions) (*websocket.Conn, error) {
	d := websocket.Dialer{
		HandshakeTimeout: c.request(),
		ReadBufferSize:   4 << 10,
		WriteBufferSize:  4 << 10,
		Proxy:            http.ProxyFromEnvironment,
	}
	if c.Dial != nil {
		d.Proxy = nil
		d.NetDialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) }
	}
	conn, res, err := d.DialContext(ctx, "ws"+strings.TrimPrefix(c.URL, "http")+"/pty/"+url.PathEscape(id)+"/ws"+o.query(), c.header(ctx))
	if err == nil {
		return conn, nil
	}
	if res != nil && errors.Is(err, websocket.ErrBadHandshake) {
		p, _ := io.ReadAll(io.LimitReader(res.Body, proto.MaxControl))
		return nil, answerError(res.StatusCode, p)
	}
	return nil, err
}

// gone asks whether the sandbox can't be reached any more.
func (c *Client) gone(ctx context.Context) error {
	if c.Diagnose == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.t().diagnose)
	defer cancel()
	if err := c.Diagnose(ctx); err != nil {
		return &goneError{err}
	}
	return nil
}

// goneError is why a sandbox can't be reached any more.
type goneError struct{ error }

func (e *goneError) Unwrap() error { return e.error }

var errNotFound = errors.New("not found")

func (c *Client) notFound(op, id string) error {
	return c.errorf(op, "PTY session %s %w", id, errNotFound)
}

func (c *Client) held(op, id string) error {
	return c.errorf(op, "PTY session %s already has an attached client; attach with takeover to evict it", id)
}

func (c *Client) errorf(op, format string, args ...any) error {
	return c.named(op, core.Errorf(core.KindPTY, op, format, args...))
}

func (c *Client) named(op string, err error) error {
	return core.WithSandbox(err, core.KindPTY, op, c.Provider, c.SandboxID)
}

// failed explains an operation that the context or the server ended.
func (c *Client) failed(ctx context.Context, op, what string, err error) error {
	if ctx.Err() != nil {
		return c.named(op, ctxError(ctx, op))
	}
	var g *goneError
	if errors.As(err, &g) {
		return c.errorf(op, "%s: %w", what, g.error)
	}
	var answered *statusError
	if errors.As(err, &answered) { // which goes on: with HTTP ...
		return c.errorf(op, "%s %w", what, err)
	}
	return c.errorf(op, "%s: %w", what, err)
}

// ctxError is the error of an operation whose context has ended.
func ctxError(ctx context.Context, op string) error {
	kind := core.KindCanceled
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		kind = core.KindTimeout
	}
	return core.Errorf(kind, op, "gave up: %w", context.Cause(ctx))
}

// sleep waits; false when the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// clip makes an untrusted text fit into a message.
func clip(s string) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	const most = 2 << 10
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
