package opensandbox

import (
	"context"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// maxCommand is how long a command may be on its way through shells: the kernel takes an argument of 128 KiB, and
// quoting it for another user's shell makes it longer.
const maxCommand = 96 << 10

// plainCommand keeps a command from being read as an option of the shell that the daemon gives it to.
func plainCommand(command string) string {
	if strings.HasPrefix(command, "-") || strings.HasPrefix(command, "+") {
		return " " + command
	}
	return command
}

// shorten puts a command that is too long for one argument into a file from which its shell takes it. What it returns
// removes the file.
func (i *instance) shorten(ctx context.Context, req *core.ExecRequest) (tidy func(), err error) {
	if len(req.Command)+3*strings.Count(req.Command, "'") <= maxCommand {
		return func() {}, nil
	}
	at, err := i.daemon(ctx)
	if err != nil {
		return nil, err
	}
	name := stopover()
	own := &instance{p: i.p, id: i.id, at: &at} // the file is the daemon's, not the default user's
	err = i.ops().retry(ctx, "sending a long command to sandbox "+i.id, func(ctx context.Context) error {
		return own.store(ctx, strings.NewReader(req.Command), int64(len(req.Command)), 0o644, name, false)
	})
	if err != nil {
		return nil, err
	}
	// The last line's end is none of the command's that matters.
	req.Command = `eval "$(cat ` + name + `)"`
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		defer cancel()
		quietly(ctx, "the file of a long command could not be removed", i.unlink(ctx, name))
	}, nil
}

// removeTimeout bounds the removal of a file that nobody needs any more.
const removeTimeout = 10 * time.Second
