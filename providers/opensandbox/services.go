package opensandbox

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// sessionDeleteTimeout bounds the end of a session.
	sessionDeleteTimeout = 10 * time.Second
	// serviceTimeout is the exit code of a command with services whose time was over, as of the program timeout.
	serviceTimeout = 124
)

// sessionRun is a request to run a command in a session. The daemon has no limit for it: we keep the time.
type sessionRun struct {
	Command string `json:"command"`
	Timeout int64  `json:"timeout"`
}

// execKeeping runs a command whose services live on when it has ended: in a session,
// which is ended exactly once. While the command runs that kills it; after its end
// it leaves alone what it started with its output redirected.
func (i *instance) execKeeping(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	who, err := readAccount("exec", req.User)
	if err != nil {
		return core.ExecResult{}, err
	}
	if who.uid != nil && *who.uid != 0 || who.gid != nil {
		return core.ExecResult{}, core.Errorf(core.KindNotSupported, "exec", "commands with background services need a user's name, not a number: the daemon's sessions run as one user")
	}
	command := withEnv(plainCommand(req.Command), req.Env)
	if who.name != "" {
		command = asUser(command, who.name)
	}
	if isPattern(req.Cwd) {
		command, req.Cwd = goTo(req.Cwd)+command, ""
	}
	id, err := i.openSession(ctx, req.Cwd)
	if err != nil {
		if ctx.Err() != nil {
			return core.ExecResult{}, canceled(ctx, "exec")
		}
		return i.refused(ctx, err)
	}
	var once sync.Once
	var closing error
	closeSession := func(ctx context.Context) error {
		once.Do(func() { closing = i.closeSession(ctx, id) })
		return closing
	}
	s := &stream{
		i: i, path: "/session/" + url.PathEscape(id) + "/run", body: &sessionRun{Command: "bash -c " + quote(command)},
		timeout: req.Timeout, sink: sink, ownDeadline: true,
		interrupt: func(ctx context.Context, _ string) error { return closeSession(ctx) },
		timedOut: func() core.ExecResult {
			res := core.TimedOut(providerName, req.Timeout)
			res.ExitCode = serviceTimeout
			res.Reason = "the command's native session was deleted when its time was over\n" + res.Reason
			return res
		},
	}
	res, err := s.run(ctx)
	late := context.WithoutCancel(ctx)
	quietly(late, "a session of a sandbox could not be deleted", closeSession(late))
	return res, err
}

func (i *instance) openSession(ctx context.Context, cwd string) (string, error) {
	body := map[string]string{}
	if cwd != "" {
		body["cwd"] = cwd
	}
	var made struct {
		ID string `json:"session_id"`
	}
	_, err := i.ask(ctx, call{method: http.MethodPost, json: body}, "/session", &made)
	if err == nil && made.ID == "" {
		err = fmt.Errorf("the daemon made a session without naming it")
	}
	return made.ID, err
}

// closeSession ends a session and what runs in it at this moment.
func (i *instance) closeSession(ctx context.Context, id string) error {
	_, err := i.ask(ctx, call{method: http.MethodDelete, timeout: sessionDeleteTimeout}, "/session/"+url.PathEscape(id), nil)
	if statusOf(err) == http.StatusNotFound {
		return nil
	}
	return err
}
