package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// ackWithin is how long the agent may be silent about a command before the
	// backend is asked what is wrong; it announces a longer command after a tenth of that.
	ackWithin = time.Second
	// settle is what the agent needs to end a tree beyond the grace, before the host stops waiting for it.
	settle = 7 * time.Second
	// diagnoseTimeout bounds the question to the backend.
	diagnoseTimeout = 5 * time.Second
	// farewellWait is how long a broken stream waits for the reason that may be under way on another.
	farewellWait = 300 * time.Millisecond
)

// Options is how a Client reaches its agent.
type Options struct {
	// Dial opens a new byte stream to the agent.
	Dial func(ctx context.Context) (net.Conn, error)
	// Token is the secret of the sandbox.
	Token []byte
	// Claim: the agent has no token yet and gets it with the first stream.
	Claim bool
	// PassFDs: streams are unix sockets of this host, so pipes and files are passed as descriptors.
	PassFDs bool
	// Provider and SandboxID name the sandbox in messages.
	Provider, SandboxID string
	// Seal, when set, is called after the first handshake and before anything runs in the sandbox.
	Seal func() error
	// Alive, when set, is asked while Connect waits: its error ends the wait.
	Alive func(ctx context.Context) error
	// Diagnose, when set, asks the backend for the sandbox's state when the agent is lost or silent.
	Diagnose func(ctx context.Context) Diagnosis
	// KillGrace is the agent's, see ServeConfig.
	KillGrace time.Duration
}

// Diagnosis is what the backend knows of a sandbox.
type Diagnosis struct {
	Status core.Status
	Reason string // one line, for example "the container was removed"
}

// Info is what the agent tells of itself; like all it says, it is unverified.
type Info struct {
	PID      int
	Hostname string
	Shell    string
	Defaults core.Defaults
}

// Client speaks to one sandbox's agent. It is safe for concurrent use.
type Client struct {
	o    Options
	skew time.Duration // of the agent's clock
	info Info
	pool pool

	dials chan struct{} // one entry for each stream that is being opened

	presence *wire.Stream
	lost     chan struct{} // closed when the presence stream has ended

	mu       sync.Mutex
	farewell string
	closed   bool
	asked    *question // to the backend, by those who wait for a silent agent
}

// Connect reaches the agent, which may still be starting: it dials until ctx
// ends. The client holds one stream as a sign of life until Close.
func Connect(ctx context.Context, o Options) (*Client, error) {
	if o.KillGrace <= 0 {
		o.KillGrace = wire.DefaultKillGrace
	}
	c := &Client{o: o, lost: make(chan struct{}), dials: make(chan struct{}, maxDials)}
	c.pool = pool{dial: c.dial, used: map[*wire.Stream]struct{}{}}
	st, err := c.first(ctx)
	if err != nil {
		return nil, err
	}
	c.o.Claim = false
	if o.Seal != nil {
		if err := o.Seal(); err != nil {
			_ = st.Close()
			return nil, fmt.Errorf("close the sandbox's folder: %w", err)
		}
	}
	if err := c.greet(ctx, st); err != nil {
		_ = st.Close()
		return nil, err
	}
	c.presence = st
	go c.watch()
	return c, nil
}

// first dials until the agent answers.
func (c *Client) first(ctx context.Context) (*wire.Stream, error) {
	var last error
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		st, err := c.dial(ctx)
		if err == nil {
			return st, nil
		}
		if errors.Is(err, wire.ErrAuth) {
			return nil, core.Errorf(core.KindAuth, "connect", "what answers in the sandbox is not its agent: %w", err)
		}
		if ctx.Err() == nil {
			last = err
		}
		if c.o.Alive != nil {
			if aerr := c.o.Alive(ctx); aerr != nil && ctx.Err() == nil {
				return nil, aerr
			}
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the sandbox's agent does not answer (%w; last try: %w)", context.Cause(ctx), last)
		case <-time.After(wait):
		}
	}
}

func (c *Client) greet(ctx context.Context, st *wire.Stream) error {
	stop := context.AfterFunc(ctx, func() { _ = st.SetDeadline(time.Now()) })
	defer stop()
	if err := st.WriteJSON(wire.Request, wire.Req{Op: wire.OpPresence}); err != nil {
		return fmt.Errorf("greet the sandbox's agent: %w", err)
	}
	t, p, err := st.ReadFrame(nil)
	if err != nil {
		return fmt.Errorf("greet the sandbox's agent: %w", err)
	}
	var info wire.Info
	if t != wire.Meta || json.Unmarshal(p, &info) != nil {
		return errors.New("greet the sandbox's agent: its answer makes no sense")
	}
	c.info = Info{PID: info.PID, Hostname: info.Hostname, Shell: info.Shell,
		Defaults: core.Defaults{User: info.Defaults.User, Workdir: info.Defaults.Workdir}}
	return nil
}

// watch ends with the presence stream.
func (c *Client) watch() {
	defer close(c.lost)
	for {
		t, p, err := c.presence.ReadFrame(nil)
		if err != nil {
			return
		}
		var bye wire.Goodbye
		if t == wire.Farewell && json.Unmarshal(p, &bye) == nil {
			c.mu.Lock()
			c.farewell = oneLine(bye.Reason)
			c.mu.Unlock()
		}
	}
}

// maxDials is how many streams of a client may be unauthenticated at a time: the
// agent refuses more than a few from all its clients together.
const maxDials = 8

// dial opens and authenticates a stream.
func (c *Client) dial(ctx context.Context) (*wire.Stream, error) {
	select {
	case c.dials <- struct{}{}:
		defer func() { <-c.dials }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	conn, err := c.o.Dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	deadline, _ := ctx.Deadline()
	skew, err := wire.OpenHandshake(conn, c.o.Token, c.o.Claim, deadline)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.mu.Lock()
	c.skew = skew
	c.mu.Unlock()
	return wire.NewHostStream(conn), nil
}

// Info is what the agent told when it was connected to.
func (c *Client) Info() Info { return c.info }

// Lost is closed when the sandbox has ended or the client was closed.
func (c *Client) Lost() <-chan struct{} { return c.lost }

// Farewell is why the sandbox ended, as its agent said; "" when it could not say.
func (c *Client) Farewell() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.farewell
}

// Close drops all streams. Operations under way end as if the client had died:
// the agent kills their commands. Idempotent.
func (c *Client) Close() {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	c.mu.Unlock()
	if was {
		return
	}
	_ = c.presence.Close()
	<-c.lost
	c.pool.close()
}

// Handover keeps the sandbox for the handover time after its last client left.
func (c *Client) Handover(ctx context.Context) error {
	return c.simple(ctx, "serialize", wire.Req{Op: wire.OpHandover})
}

// SetDefaults tells the agent what commands get that do not say otherwise; clients that connect later see it.
func (c *Client) SetDefaults(ctx context.Context, d core.Defaults) error {
	return c.simple(ctx, "set defaults", wire.Req{Op: wire.OpDefaults, Defaults: &wire.Defaults{User: d.User, Workdir: d.Workdir}})
}

// Freeze stops every process but the agent.
func (c *Client) Freeze(ctx context.Context) error {
	return c.simple(ctx, "pause", wire.Req{Op: wire.OpFreeze})
}

// Thaw continues what Freeze stopped.
func (c *Client) Thaw(ctx context.Context) error {
	return c.simple(ctx, "resume", wire.Req{Op: wire.OpThaw})
}

// Shutdown ends the sandbox and returns when the agent has gone. A sandbox that is gone already is success.
func (c *Client) Shutdown(ctx context.Context) error {
	st, err := c.begin(ctx, wire.Req{Op: wire.OpShutdown})
	if err == nil {
		defer c.pool.drop(st)
	}
	select {
	case <-c.lost:
		return nil
	default:
	}
	if err != nil {
		return c.failed(ctx, "stop", err)
	}
	select {
	case <-c.lost:
		return nil
	case <-ctx.Done():
		return core.Errorf(core.KindTimeout, "stop", "the sandbox's agent does not end: %w", context.Cause(ctx))
	}
}

// simple does an operation without bytes.
func (c *Client) simple(ctx context.Context, what string, req wire.Req) error {
	ctx, _, done := c.unlessSilent(ctx)
	defer done()
	st, err := c.begin(ctx, req)
	if err != nil {
		return c.failed(ctx, what, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = st.SetReadDeadline(time.Now()) })
	defer stop()
	res, err := c.result(st, nil)
	if err != nil {
		c.pool.drop(st)
		return c.failed(ctx, what, err)
	}
	c.release(st, stop)
	return resError(what, res)
}

// begin gets a stream and sends a request on it. A pooled stream that the
// agent has dropped meanwhile is replaced, as long as nothing has been sent.
func (c *Client) begin(ctx context.Context, req wire.Req, fds ...int) (*wire.Stream, error) {
	req.FDs = len(fds)
	for {
		st, pooled, err := c.pool.get(ctx)
		if err != nil {
			return nil, err
		}
		err = st.WriteJSON(wire.Request, req, fds...)
		if err == nil {
			return st, nil
		}
		c.pool.drop(st)
		if !pooled {
			return nil, err
		}
	}
}

// result reads frames until the operation's end.
func (c *Client) result(st *wire.Stream, each func(wire.Type, []byte) error) (wire.Res, error) {
	var buf []byte
	for {
		t, p, err := st.ReadFrame(buf)
		if err != nil {
			return wire.Res{}, err
		}
		if cap(p) <= wire.MaxData {
			buf = p
		}
		if t == wire.Result {
			var res wire.Res
			if err := json.Unmarshal(p, &res); err != nil {
				return res, fmt.Errorf("the agent's result makes no sense: %w", err)
			}
			res.Error, res.Message = clip(res.Error), clip(res.Message)
			return res, nil
		}
		if each != nil {
			if err := each(t, p); err != nil {
				return wire.Res{}, err
			}
		}
	}
}

// failed explains why an operation other than a command got no result.
func (c *Client) failed(ctx context.Context, what string, err error) error {
	if serr := silentError(ctx, what); serr != nil {
		return serr
	}
	if ctx.Err() != nil {
		kind := core.KindCanceled
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			kind = core.KindTimeout
		}
		return core.Errorf(kind, what, "gave up: %w", context.Cause(ctx))
	}
	return core.Errorf(core.KindSandbox, what, "%s (%w)", c.why(ctx), err)
}

// why tells what became of a sandbox whose agent is lost or silent.
func (c *Client) why(ctx context.Context) string {
	select {
	case <-c.lost:
	case <-time.After(farewellWait):
	}
	if bye := c.Farewell(); bye != "" {
		return "the sandbox has ended: " + bye
	}
	if d := c.diagnose(context.WithoutCancel(ctx)); d.Reason != "" {
		return d.Reason
	}
	return "the connection to the sandbox's agent was lost"
}

func (c *Client) diagnose(ctx context.Context) Diagnosis {
	if c.o.Diagnose == nil {
		return Diagnosis{Status: core.StatusUnknown}
	}
	ctx, cancel := context.WithTimeout(ctx, diagnoseTimeout)
	defer cancel()
	return c.o.Diagnose(ctx)
}

func resError(what string, res wire.Res) error {
	if res.Error == "" {
		return nil
	}
	kind := core.KindSandbox
	switch res.Kind {
	case wire.KindNotFound:
		kind = core.KindNotFound
	case wire.KindInvalid, wire.KindUser, wire.KindCwd:
		kind = core.KindInvalid
	case wire.KindInternal:
		kind = core.KindInternal
	}
	return core.Errorf(kind, what, "%s", res.Error)
}

// maxText bounds what is believed to be a message of the agent.
const maxText = 4 << 10

func clip(s string) string {
	if len(s) > maxText {
		return s[:maxText] + "..."
	}
	return s
}
