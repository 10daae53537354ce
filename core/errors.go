package core

import (
	"errors"
	"fmt"
	"strings"
)

// Kind classifies an Error; callers decide on it, so the set is small and stable.
type Kind string

// The kinds. A runtime failure during a command is not an error but a result
// (ExecResult.ErrorType); KindSandbox is for other operations on a sandbox
// whose runtime failed.
const (
	KindCreate       Kind = "create"        // the sandbox could not be made
	KindVerification Kind = "verification"  // it was made, but failed its readiness check
	KindPTY          Kind = "pty"           // a terminal session failed outside a normal exit
	KindNotSupported Kind = "not_supported" // the backend or its configuration can't do it
	KindNotStarted   Kind = "not_started"   // the sandbox has not been started
	KindTimeout      Kind = "timeout"       // the operation's own deadline passed
	KindSandbox      Kind = "sandbox"       // the sandbox's runtime failed
	KindNotFound     Kind = "not_found"     // the named thing does not exist
	KindConflict     Kind = "conflict"      // the state forbids it, for example a second start
	KindAuth         Kind = "auth"          // credentials are missing or refused
	KindInvalid      Kind = "invalid"       // the caller's input is wrong
	KindUnknownKey   Kind = "unknown_key"   // the caller's configuration has a key that does not exist
	KindClosed       Kind = "closed"        // the sandbox or provider has been stopped
	KindCanceled     Kind = "canceled"      // the caller gave up
	KindInternal     Kind = "internal"      // a fault of this library
)

// Error is the one error type that crosses the package's border. Its text says
// what was attempted, on what, and what to do.
type Error struct {
	Kind      Kind
	Op        string // what was attempted: "create", "exec", "download", ...
	Provider  string // name of the backend, "" when none is involved
	SandboxID string // "" before the sandbox has one
	Err       error  // the cause; its text is the message
}

// Error implements error.
func (e *Error) Error() string {
	if e == nil {
		return "<nil>"
	}
	msg := ""
	if e.Err != nil {
		msg = e.Err.Error()
	}
	var at []string
	if e.Provider != "" {
		at = append(at, e.Provider)
	}
	if e.Op != "" {
		at = append(at, e.Op)
	}
	where := strings.Join(at, " ")
	if e.SandboxID != "" && !strings.Contains(msg, e.SandboxID) {
		where += " " + e.SandboxID
	}
	switch {
	case where == "":
		return msg
	case msg == "":
		return where + " failed"
	default:
		return strings.TrimSpace(where) + ": " + msg
	}
}

// Unwrap gives the cause to errors.Is and errors.As.
func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error of a kind from a format; %w keeps the cause.
func Errorf(kind Kind, op, format string, args ...any) *Error {
	return &Error{Kind: kind, Op: op, Err: fmt.Errorf(format, args...)}
}

// KindOf finds the kind of an error: that of the outermost *Error in its
// chain, or KindInternal.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}

// WithSandbox fills in provider and sandbox of an error that lacks them, so that
// inner layers need not know where they run. Errors of other types get kind.
func WithSandbox(err error, kind Kind, op, provider, id string) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		c := *e
		if c.Provider == "" {
			c.Provider = provider
		}
		if c.SandboxID == "" {
			c.SandboxID = id
		}
		if c.Op == "" {
			c.Op = op
		}
		return &c
	}
	return &Error{Kind: kind, Op: op, Provider: provider, SandboxID: id, Err: err}
}
