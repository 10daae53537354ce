package opensandbox

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty"
)

// OpenPTY implements core.PTYOpener.
func (i *instance) OpenPTY(ctx context.Context, spec core.PTYSpec) (core.PTYSession, error) {
	if err := i.healthy(); err != nil {
		return nil, err
	}
	who, err := readAccount("pty create", spec.User)
	if err != nil {
		return nil, err
	}
	if who.uid != nil && (*who.uid != 0 || who.gid != nil || strings.TrimSpace(spec.User) != "root") {
		return nil, core.Errorf(core.KindInvalid, "pty create", "PTY sessions of OpenSandbox need a user name, not a number")
	}
	spec.Command, spec.Env, spec.User = sessionCommand(spec.Command, spec.Env, who.name), nil, ""
	c, err := i.terminals(ctx, "pty create")
	if err != nil {
		return nil, err
	}
	s, err := c.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// AttachPTY implements core.PTYAttacher.
func (i *instance) AttachPTY(ctx context.Context, id string, takeover bool, since int64) (core.PTYSession, error) {
	if err := i.healthy(); err != nil {
		return nil, err
	}
	c, err := i.terminals(ctx, "pty attach")
	if err != nil {
		return nil, err
	}
	// The daemon would start the command of a session again that has ended.
	var info struct {
		Running *bool `json:"running"`
		Offset  int64 `json:"output_offset"`
	}
	if _, err := i.ask(ctx, call{method: http.MethodGet}, "/pty/"+url.PathEscape(id), &info); err == nil && info.Running != nil && !*info.Running && info.Offset > 0 {
		return nil, core.Errorf(core.KindPTY, "pty attach", "PTY session %s has ended: attaching to it would run its command again", id)
	}
	s, err := c.Attach(ctx, id, takeover, since)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// terminals is a client of the daemon's sessions.
func (i *instance) terminals(ctx context.Context, op string) (*pty.Client, error) {
	at, err := i.daemon(ctx)
	if err != nil {
		return nil, failed(ctx, op, i.id, "resolving the sandbox's daemon", err)
	}
	c := &pty.Client{URL: at.url, Header: at.header, Provider: providerName, SandboxID: i.id, Diagnose: i.verdict, RestartsEnded: true}
	if rest, ok := strings.CutPrefix(at.url, "https://"); ok && !i.p.cfg.Connection.TLSVerify {
		u, err := url.Parse(at.url)
		if err != nil {
			return nil, core.Errorf(core.KindSandbox, op, "the daemon's address is no URL")
		}
		host := u.Host
		if u.Port() == "" {
			host = net.JoinHostPort(u.Hostname(), "443")
		}
		d := &tls.Dialer{Config: tlsConfig(i.p.cfg.Connection)}
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

// sessionCommand is what a session runs: the daemon knows only commands, neither
// variables nor users. "" is an interactive shell.
//
// A single command is run by a shell that outlives it by a moment, as the daemon
// reports an end at once and forgets what was not read by then; that shell also
// tells death by a signal as 128 and its number.
func sessionCommand(command string, env map[string]string, user string) string {
	command = withEnv(command, env)
	if user != "" {
		command = asUser(command, user)
	}
	if command == "" {
		return "if " + canInterrupt + "; then exec " + interruptible + shell + "; fi; exec " + shell
	}
	run := shell + " -c " + quote(command)
	return "trap : HUP INT QUIT TERM; if " + canInterrupt + "; then " + interruptible + run + "; else " + run + "; fi; r=$?; sleep 0.1 2>/dev/null || sleep 1; exit $r"
}
