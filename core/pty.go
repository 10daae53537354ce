package core

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// PTYSpec is a request for one terminal session.
type PTYSpec struct {
	Command string            // run by the sandbox's shell; "" is the interactive shell itself
	Cwd     string            // "" means the sandbox's default directory
	Env     map[string]string // over the sandbox's environment
	Rows    int               // of the terminal; 0 with Cols 0 means 24
	Cols    int               // 0 with Rows 0 means 80
	User    string            // as in ExecRequest; "" means the default user
	// NoTerminal gives the process three pipes instead of a terminal, so that its stderr is a stream of its own.
	NoTerminal bool
}

// maxTerminal is what the kernel can hold as a terminal's rows or columns.
const maxTerminal = 1<<16 - 1

// Validate fills in the size when none is given, and reports a request that no backend could serve.
func (p *PTYSpec) Validate() error {
	fail := func(format string, args ...any) error {
		return &Error{Kind: KindInvalid, Op: "pty create", Err: fmt.Errorf(format, args...)}
	}
	if p.Rows == 0 && p.Cols == 0 {
		p.Rows, p.Cols = 24, 80
	}
	if p.Rows < 1 || p.Cols < 1 || p.Rows > maxTerminal || p.Cols > maxTerminal {
		return fail("rows and cols must be between 1 and %d", maxTerminal)
	}
	if strings.Contains(p.Command, "\x00") || strings.Contains(p.Cwd, "\x00") || strings.Contains(p.User, "\x00") {
		return fail("command, cwd and user must not contain NUL")
	}
	if err := ValidateEnv(p.Env); err != nil {
		return fail("env: %w", err)
	}
	return nil
}

// PTYSession is one live terminal session. It is safe for concurrent use. A
// context that ends a call harms neither the session nor later calls. Errors of
// a session that failed outside a normal exit are KindPTY.
type PTYSession interface {
	// SessionID is what another process needs to attach.
	SessionID() string
	// Mode is "pty" or "pipe", and "" before the server has said which.
	Mode() string
	// ReplayOffset is the offset at which the last replay of retained output began; false when there was none.
	ReplayOffset() (int64, bool)
	// Closed tells whether the session can't run commands any more. A detached session is not closed.
	Closed() bool

	// Read gives the next output: all of a terminal, else stdout and what is
	// replayed. io.EOF, again and again, after the process has ended and everything was
	// read. An error that wraps *PTYGap tells that output was lost; the reading can go on behind it.
	// Both streams have to be read: one that is not holds the process back.
	Read(ctx context.Context) ([]byte, error)
	// ReadStderr gives the next stderr; with a terminal there is none, only the end.
	ReadStderr(ctx context.Context) ([]byte, error)
	// Write sends input as it is. The pieces of two Writes never mix.
	Write(ctx context.Context, p []byte) error
	// Resize changes the terminal's size. After the process has exited it does nothing.
	Resize(ctx context.Context, rows, cols int) error
	// Signal sends SIGINT, SIGTERM, SIGKILL, SIGQUIT or SIGHUP to the process group of the session's process.
	Signal(ctx context.Context, name string) error
	// WaitExit waits for the process's end and gives its exit code, 128+n for death by signal n.
	// It does not read: output that is not read holds the process back.
	WaitExit(ctx context.Context) (int, error)

	// Exec types a command into a live shell and gives what it printed.
	Exec(ctx context.Context, command string) (PTYResult, error)
	// RunDetached is Exec that is attached only for a moment every poll. It ends attached.
	// Output that was driven out between two looks is an error that wraps *PTYGap.
	RunDetached(ctx context.Context, command string, poll time.Duration) (PTYResult, error)

	// Detach drops the connection while the process runs on. Its last output is
	// retained; reading and writing fail until Reattach.
	Detach() error
	// Suspend is Detach for a return within seconds, for which the process waits rather than lose output.
	// It tells whether the session was attached.
	Suspend() bool
	// Reattach connects again and goes on where the reading stopped.
	Reattach(ctx context.Context) error
	// Close ends the session if this process made it, else only detaches. Idempotent.
	Close(ctx context.Context) error
	// Abandon ends the session on this side only; readers get the reason.
	Abandon(reason error)
}

// PTYPrompt is what a session may offer besides, so that a key and its echo need not wake anybody in between.
type PTYPrompt interface {
	// TryWrite is Write for who must not wait. It takes nothing when that can't be done just now, or at all: Write can,
	// or tells why not. An error tells that p may not have arrived.
	TryWrite(p []byte) (int, error)
	// Divert has output given to f that arrives while a Read, or ReadStderr, waits for it. f must not wait, nor call the
	// session, and tells how much it took; the rest is for the Read. There may be only one reader, which hands on to
	// where f does: then all comes in order. Called before the first Read.
	Divert(of Stream, f func(p []byte) int)
}

// PTYPromptOf finds what a session offers, also behind what keeps track of it.
func PTYPromptOf(s PTYSession) (PTYPrompt, bool) {
	for {
		if p, ok := s.(PTYPrompt); ok {
			return p, true
		}
		w, ok := s.(interface{ Unwrap() PTYSession })
		if !ok {
			return nil, false
		}
		s = w.Unwrap()
	}
}

// PTYResult is the outcome of a command that was typed into a session.
type PTYResult struct {
	Stdout []byte
	Stderr []byte // only without a terminal, and as far as it has come
	// Code is the exit code; Known is false when what the shell said of it could not be read.
	Code  int
	Known bool
}

// PTYGap tells that output of a session was lost to its reader.
type PTYGap struct {
	Bytes int64 // how much
	At    int64 // offset of the first lost byte
}

// Error implements error.
func (g *PTYGap) Error() string {
	return fmt.Sprintf("%d bytes of output from offset %d on were lost: more was printed than is retained while nobody read", g.Bytes, g.At)
}

// PTYOpener is an Instance that has terminal sessions.
type PTYOpener interface {
	OpenPTY(ctx context.Context, spec PTYSpec) (PTYSession, error)
}

// PTYAttacher is an Instance whose sessions live in the sandbox, so that another client can attach.
type PTYAttacher interface {
	// AttachPTY connects to a session. takeover evicts its holder, without it a held
	// session refuses. since is the offset from which retained output is replayed first.
	AttachPTY(ctx context.Context, id string, takeover bool, since int64) (PTYSession, error)
}
