package core

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Values of ExecResult.ErrorType. An empty one means that the command ran and
// ExitCode is its own.
const (
	ErrorTypeTimeout = "timeout" // the command outlived its deadline; its process tree was killed
	ErrorTypeSandbox = "sandbox" // the runtime failed: no exit code, or an out-of-memory kill
	ErrorTypePTY     = "pty"     // a terminal session's output could not be interpreted
)

// NoExitCode is the ExitCode of a result that has no exit code of a process.
const NoExitCode = 125

// Forever is a Timeout without end.
const Forever = time.Duration(-1)

// ExecRequest is one command. Either Command (given to the sandbox's shell) or
// Argv (run as it is) is set.
type ExecRequest struct {
	Command string
	Argv    []string
	Cwd     string            // "" means the sandbox's default directory
	Env     map[string]string // over the sandbox's environment
	User    string            // name, uid, "name:group" or "uid:gid"; "" means the default user
	Timeout time.Duration     // 0 means the provider's default, Forever none
	// Stdin is what the command reads; nil is end of file at once. One that is an
	// io.Closer is closed when the command has ended, which must end a Read under way.
	Stdin io.Reader
	// KeepBackground leaves what the command started running on timeout or
	// cancellation of later commands; used for long-lived services.
	KeepBackground bool
}

// Validate reports a request that no backend could run.
func (r *ExecRequest) Validate() error {
	fail := func(format string, args ...any) error {
		return &Error{Kind: KindInvalid, Op: "exec", Err: fmt.Errorf(format, args...)}
	}
	if len(r.Argv) > 0 && r.Command != "" {
		return fail("give a command or an argv, not both")
	}
	if strings.Contains(r.Command, "\x00") || strings.Contains(r.Cwd, "\x00") || strings.Contains(r.User, "\x00") {
		return fail("command, cwd and user must not contain NUL")
	}
	if len(r.Argv) > 0 && r.Argv[0] == "" {
		return fail("argv[0] is empty")
	}
	for i, a := range r.Argv {
		if strings.Contains(a, "\x00") {
			return fail("argv[%d] contains NUL", i)
		}
	}
	if err := ValidateEnv(r.Env); err != nil {
		return fail("env: %w", err)
	}
	return nil
}

// ExecResult is the one result of one command. Output goes to the Sink.
type ExecResult struct {
	ExitCode  int    // the process's code, 128+n for death by signal n, NoExitCode when there is none
	ErrorType string // "" or one of the ErrorType constants
	// Reason says in one line why ErrorType is set; callers that return output
	// as text append it to stderr.
	Reason string
}

// TimedOut is the result of a command that outlived its deadline.
func TimedOut(provider string, after time.Duration) ExecResult {
	return ExecResult{
		ExitCode:  NoExitCode,
		ErrorType: ErrorTypeTimeout,
		Reason:    fmt.Sprintf("%s command timed out after %gs", provider, after.Seconds()),
	}
}

// RuntimeFailure is the result of a command whose sandbox failed under it.
func RuntimeFailure(reason string) ExecResult {
	return ExecResult{ExitCode: NoExitCode, ErrorType: ErrorTypeSandbox, Reason: reason}
}

// Stream names one of a command's two outputs.
type Stream int

// The streams of a command.
const (
	Stdout Stream = iota
	Stderr
)

// Sink takes a command's output as it arrives. Write may block: that is
// back-pressure and reaches the command; it must return when the context of the
// Exec ends. The two streams are written by different goroutines, each stream by
// one at a time; p is only valid during the call. A Write error stops the reading of that stream's rest (the command
// then sees a closed pipe); it does not end the command.
type Sink interface {
	Write(s Stream, p []byte) error
}

// Discard is a Sink for callers that want only the exit code.
var Discard Sink = discard{}

type discard struct{}

func (discard) Write(Stream, []byte) error { return nil }
