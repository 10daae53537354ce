package wire

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// DefaultKillGrace is how long a process tree gets between TERM and KILL.
const DefaultKillGrace = 500 * time.Millisecond

// ServeConfig is how the agent is started. It becomes its command line, which
// processes in the sandbox can read: nothing in it is secret.
type ServeConfig struct {
	// Socket is the path of the unix socket that the agent listens on.
	Socket string
	// TokenFile holds the token. It is read and unlinked before anything else runs.
	TokenFile string
	// Claim: there is no token file; the first peer with user id 0 brings the token.
	Claim bool
	// TTL ends the sandbox, Orphan ends it that long after the last client left;
	// after a handover Handover takes Orphan's place. 0 is off.
	TTL, Orphan, Handover time.Duration
	// User and Workdir are the defaults of commands; "" is the agent's own user, and "/".
	User, Workdir string
	// Shell runs commands; "" is bash where the sandbox has it, else sh.
	Shell string
	// KeepHome: HOME in the agent's environment was chosen by image or spec, so commands of every user get it.
	KeepHome bool
	// SingleUser: the agent may not change user, so asking for another one is an error.
	SingleUser bool
	// Subreaper: the agent is not process 1; it adopts orphans and kills its descendants when it ends.
	Subreaper bool
	// OOMScore: commands get the score 0, the agent keeps the lower one it was started with.
	OOMScore bool
	// KillGrace is the time between TERM and KILL; 0 is DefaultKillGrace.
	KillGrace time.Duration
	// Entrypoint is a main process: when it ends the sandbox ends with its code.
	Entrypoint []string
}

func (c *ServeConfig) flags() *flag.FlagSet {
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&c.Socket, "socket", "", "")
	f.StringVar(&c.TokenFile, "token-file", "", "")
	f.BoolVar(&c.Claim, "claim", false, "")
	f.DurationVar(&c.TTL, "ttl", 0, "")
	f.DurationVar(&c.Orphan, "orphan", 0, "")
	f.DurationVar(&c.Handover, "handover", 0, "")
	f.StringVar(&c.User, "user", "", "")
	f.StringVar(&c.Workdir, "workdir", "", "")
	f.StringVar(&c.Shell, "shell", "", "")
	f.BoolVar(&c.KeepHome, "keep-home", false, "")
	f.BoolVar(&c.SingleUser, "single-user", false, "")
	f.BoolVar(&c.Subreaper, "subreaper", false, "")
	f.BoolVar(&c.OOMScore, "oom-score", false, "")
	f.DurationVar(&c.KillGrace, "kill-grace", 0, "")
	return f
}

// Args is the command line behind the program's name. ParseServe reads it back.
func (c ServeConfig) Args() []string {
	args := []string{"serve"}
	var zero, given ServeConfig
	fz := zero.flags()
	fg := given.flags()
	given = c // the flag variables of fg point into given
	fg.VisitAll(func(f *flag.Flag) {
		if v := f.Value.String(); v != fz.Lookup(f.Name).Value.String() {
			args = append(args, "-"+f.Name+"="+v)
		}
	})
	if len(c.Entrypoint) > 0 {
		args = append(append(args, "--"), c.Entrypoint...)
	}
	return args
}

// ParseServe reads the command line behind the word "serve".
func ParseServe(args []string) (ServeConfig, error) {
	var c ServeConfig
	f := c.flags()
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.Entrypoint = f.Args()
	if c.Socket == "" {
		return c, errors.New("-socket is missing")
	}
	if (c.TokenFile == "") == !c.Claim {
		return c, fmt.Errorf("give either -token-file or -claim")
	}
	if c.KillGrace <= 0 {
		c.KillGrace = DefaultKillGrace
	}
	return c, nil
}
