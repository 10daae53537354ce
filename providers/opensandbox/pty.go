package opensandbox

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty"
)

// OpenPTY implements core.PTYOpener.
func (i *instance) OpenPTY(ctx context.Context, spec core.PTYSpec) (core.PTYSession, error) {
	if err := i.healthy(); err != nil {
		return nil, err
	}
	once, err := forSession(&spec)
	if err != nil {
		return nil, err
	}
	c, err := i.terminals(ctx, "pty create")
	if err != nil {
		return nil, err
	}
	at, err := i.daemon(ctx)
	if err != nil {
		return nil, failed(ctx, "pty create", i.id, "resolving the sandbox's daemon", err)
	}
	session, err := c.Open(ctx, spec)
	i.p.held.add(i.id, session)
	return i.p.locked(at, once)(session, err)
}

// AttachPTY implements core.PTYAttacher. With takeover, an attachment of this provider to the same session is detached
// first: it is no stranger's, and can come back.
func (i *instance) AttachPTY(ctx context.Context, id string, takeover bool, since int64) (core.PTYSession, error) {
	if err := i.healthy(); err != nil {
		return nil, err
	}
	c, err := i.terminals(ctx, "pty attach")
	if err != nil {
		return nil, err
	}
	c.Yield = func(ctx context.Context, id string) error { return i.p.held.yield(ctx, i.id, id) }
	session, err := c.Attach(ctx, id, takeover, since)
	i.p.held.add(i.id, session)
	return opened(session, err)
}

// heldSessions are the sessions that a provider has made or attached to, each with its sandbox, until they have ended here.
type heldSessions struct {
	mu sync.Mutex
	of map[*pty.Session]string
}

// add remembers a session; nil is none.
func (h *heldSessions) add(sandbox string, s *pty.Session) {
	if s == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for old := range h.of {
		if old.Closed() {
			delete(h.of, old)
		}
	}
	if h.of == nil {
		h.of = map[*pty.Session]string{}
	}
	h.of[s] = sandbox
}

// yield detaches who is attached to a session.
func (h *heldSessions) yield(ctx context.Context, sandbox, id string) error {
	h.mu.Lock()
	var mine []*pty.Session
	for s, of := range h.of {
		if of == sandbox && s.SessionID() == id {
			mine = append(mine, s)
		}
	}
	h.mu.Unlock()
	for _, s := range mine {
		if err := s.Yield(ctx); err != nil {
			return err
		}
	}
	return nil
}

// DialPTY opens a session at the address of a daemon. timeout bounds each request; 0 is 300 s.
func (p *Provider) DialPTY(ctx context.Context, at core.Endpoint, timeout time.Duration, spec core.PTYSpec) (core.PTYSession, error) {
	once, err := forSession(&spec)
	if err != nil {
		return nil, err
	}
	e, err := daemonAt(at)
	if err != nil {
		return nil, err
	}
	c, err := p.dialer(e, timeout)
	if err != nil {
		return nil, err
	}
	return p.locked(e, once)(c.Open(ctx, spec))
}

// DialAttachPTY attaches to a session at the address of a daemon. pipes counts when nobody has been attached to it yet:
// then it has pipes instead of a terminal.
func (p *Provider) DialAttachPTY(ctx context.Context, at core.Endpoint, timeout time.Duration, id string, pipes, takeover bool, since int64) (core.PTYSession, error) {
	e, err := daemonAt(at)
	if err != nil {
		return nil, err
	}
	c, err := p.dialer(e, timeout)
	if err != nil {
		return nil, err
	}
	c.Pipes = pipes
	return opened(c.Attach(ctx, id, takeover, since))
}

// daemonAt reads the address of a daemon.
func daemonAt(at core.Endpoint) (endpoint, error) {
	e := endpoint{url: strings.TrimRight(strings.TrimSpace(at.URL), "/"), header: http.Header{}}
	if u, err := url.Parse(e.url); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return e, core.Errorf(core.KindInvalid, "pty", "the daemon's address has to be an http or https URL")
	}
	for k, v := range at.Headers {
		e.header.Set(k, v)
	}
	return e, nil
}

func (p *Provider) dialer(at endpoint, timeout time.Duration) (*pty.Client, error) {
	c, err := p.client(at)
	if err == nil {
		c.Timeout = timeout
	}
	return c, err
}

// locked gives an opened session what removes its lock when it is closed: then nobody can start its command any more.
// Nor can anybody whose session did not come about: it has no name.
func (p *Provider) locked(at endpoint, once string) func(*pty.Session, error) (core.PTYSession, error) {
	unlock := func() {
		remove := call{method: http.MethodDelete, url: at.url + "/directories?path=" + url.QueryEscape(once), header: at.header, timeout: unlockTimeout}
		p.background(func(ctx context.Context) {
			// Who closes a session and then the provider leaves nothing behind either; a sandbox that is gone took it along.
			_, _ = p.rest.do(context.WithoutCancel(ctx), remove, nil)
		})
	}
	return func(s *pty.Session, err error) (core.PTYSession, error) {
		if once == "" {
			return opened(s, err)
		}
		if err != nil {
			unlock()
			return nil, err
		}
		return &lockedSession{Session: s, unlock: unlock}, nil
	}
}

// unlockTimeout bounds the removal of a lock that nobody needs any more, which the provider's end waits for.
const unlockTimeout = 3 * time.Second

// lockedSession is a session whose command runs once.
type lockedSession struct {
	*pty.Session
	unlock func()
	once   sync.Once
}

// Close implements core.PTYSession.
func (s *lockedSession) Close(ctx context.Context) error {
	err := s.Session.Close(ctx)
	if err == nil {
		s.once.Do(s.unlock)
	}
	return err
}

// opened keeps a missing session from becoming an interface that is not nil.
func opened(s *pty.Session, err error) (core.PTYSession, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// forSession makes a request one that the daemon knows. once is the lock of a single command, "" without one.
func forSession(spec *core.PTYSpec) (once string, err error) {
	who, err := readAccount("pty create", spec.User)
	if err != nil {
		return "", err
	}
	if who.uid != nil && (*who.uid != 0 || who.gid != nil || strings.TrimSpace(spec.User) != "root") {
		return "", core.Errorf(core.KindInvalid, "pty create", "PTY sessions of OpenSandbox need a user name, not a number")
	}
	if spec.Command != "" {
		once = stopover()
	}
	spec.Command, spec.Env, spec.User = sessionCommand(spec.Command, spec.Env, who.name, once), nil, ""
	if isPattern(spec.Cwd) {
		spec.Command, spec.Cwd = goTo(spec.Cwd)+spec.Command, ""
	}
	return once, nil
}

// terminals is a client of the daemon's sessions.
func (i *instance) terminals(ctx context.Context, op string) (*pty.Client, error) {
	at, err := i.daemon(ctx)
	if err != nil {
		return nil, failed(ctx, op, i.id, "resolving the sandbox's daemon", err)
	}
	c, err := i.p.client(at)
	if err != nil {
		return nil, err
	}
	c.SandboxID, c.Diagnose, c.Timeout = i.id, i.verdict, orSeconds(i.p.cfg.Connection.RequestTimeoutS, 0)
	return c, nil
}

// client is one of a daemon's sessions. Every socket has a connection of its own: servers
// drop those that have carried other requests.
func (p *Provider) client(at endpoint) (*pty.Client, error) {
	c := &pty.Client{URL: at.url, Header: at.header, Provider: providerName, RestartsEnded: true}
	if rest, ok := strings.CutPrefix(at.url, "https://"); ok && !p.cfg.Connection.TLSVerify {
		u, err := url.Parse(at.url)
		if err != nil {
			return nil, core.Errorf(core.KindSandbox, "pty", "the daemon's address is no URL")
		}
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), "443")
		}
		d := &tls.Dialer{Config: tlsConfig(p.cfg.Connection)}
		c.URL = "http://" + rest // the connections that Dial makes are encrypted
		c.Dial = func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", host) }
	}
	return c, nil
}

// The daemon's sessions ignore interrupts, as it was itself started in the
// background. Where env can, it gives them back their meaning.
const (
	canInterrupt  = "env --default-signal=INT true 2>/dev/null"
	interruptible = "env --default-signal=INT "
	shell         = "bash --norc --noprofile"
)

// ranBefore is what a session says whose command is not run a second time.
const ranBefore = "the command of this session has ended before: its exit code is unknown"

// sessionCommand is what a session runs: the daemon knows only commands, neither
// variables nor users. "" is an interactive shell.
//
// A single command is run by a shell that outlives it by a moment, as the daemon
// reports an end at once and forgets what was not read by then; that shell also
// tells death by a signal as 128 and its number.
//
// A daemon starts the command of a session that has ended once more when somebody attaches. Who comes back asks first
// whether it runs, but it may end between the answer and the attaching: once is a folder that only the first run can make.
func sessionCommand(command string, env map[string]string, user, once string) string {
	command = withEnv(command, env)
	if user != "" {
		command = asUser(command, user)
	}
	if command == "" {
		return "if " + canInterrupt + "; then exec " + interruptible + shell + "; fi; exec " + shell
	}
	run := shell + " -c " + quote(command)
	guard := ""
	if once != "" {
		guard = "mkdir " + once + " 2>/dev/null || if [ -d " + once + " ]; then echo " + quote(ranBefore) + " >&2; exit 125; fi; "
	}
	return guard + "trap : HUP INT QUIT TERM; if " + canInterrupt + "; then " + interruptible + run + "; else " + run + "; fi; r=$?; sleep 0.1 2>/dev/null || sleep 1; exit $r"
}
