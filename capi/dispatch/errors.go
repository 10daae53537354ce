package dispatch

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Code is what a call answers when it can't be served. All are negative; the numbers are part of the ABI (ngs.h).
type Code int32

// The codes of calls. An operation's own failure is the status of its event instead: one of these, or one of kindStatus.
const (
	OK            Code = 0
	ErrForked     Code = -101 // a forked child uses its parent's library
	ErrPanic      Code = -102 // a fault of the library, kept from ending the process
	ErrBadHandle  Code = -103 // no such object, or not of the type that the call needs
	ErrClosed     Code = -104 // the object or the library has been closed
	ErrAgain      Code = -105 // too many operations in flight on this bridge
	ErrABI        Code = -106 // caller and library were built for different versions
	ErrInvalid    Code = -107 // a bad argument
	EOF           Code = -108 // the stream has ended
	ErrTooSmall   Code = -109 // the buffer can't hold what must come next
	ErrExists     Code = -110 // the operation's id is in use
	ErrNotStarted Code = -111 // ngs_runtime_start was not called
	ErrFailed     Code = -112 // the stream failed; Library.StreamError tells why
)

// kindStatus gives each kind of error its number in a DONE event.
var kindStatus = map[core.Kind]Code{
	core.KindCreate:       -201,
	core.KindVerification: -202,
	core.KindPTY:          -203,
	core.KindNotSupported: -204,
	core.KindNotStarted:   -205,
	core.KindTimeout:      -206,
	core.KindSandbox:      -207,
	core.KindNotFound:     -208,
	core.KindConflict:     -209,
	core.KindAuth:         -210,
	core.KindInvalid:      -211,
	core.KindUnknownKey:   -212,
	core.KindClosed:       -213,
	core.KindCanceled:     -214,
	core.KindInternal:     -215,
}

// errorPayload is the JSON of a failed operation.
type errorPayload struct {
	Code      Code      `json:"code"`
	Kind      core.Kind `json:"kind"`
	Message   string    `json:"message"`
	Op        string    `json:"op"`
	Provider  string    `json:"provider"`
	SandboxID string    `json:"sandbox_id"`
	Retryable bool      `json:"retryable"`
	Retries   int64     `json:"retries,omitempty"` // attempts that were made again
}

// retriedError is the error of something that was tried several times.
type retriedError struct {
	error
	retries int64
}

func (e *retriedError) Unwrap() error { return e.error }

// maxMessage keeps an error inside one event, whatever a backend wrote; JSON may need six times as much.
const maxMessage = 16 << 10

// clip shortens a text of somebody else's.
func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + " ..."
}

// describe turns an error into its event's status and payload.
func describe(err error) (Code, []byte) {
	p := errorPayload{Kind: core.KindOf(err), Message: err.Error()}
	var e *core.Error
	if errors.As(err, &e) {
		p.Op, p.Provider, p.SandboxID = e.Op, e.Provider, e.SandboxID
	} else if core.IsCanceled(err) {
		p.Kind = core.KindCanceled
	}
	p.Code = kindStatus[p.Kind]
	if p.Code == 0 {
		p.Kind, p.Code = core.KindInternal, kindStatus[core.KindInternal]
	}
	var panicked *panicError
	if errors.As(err, &panicked) {
		p.Code = ErrPanic
	}
	var retried *retriedError
	if errors.As(err, &retried) {
		p.Retries = retried.retries
	}
	p.Retryable = p.Kind == core.KindTimeout || p.Kind == core.KindConflict
	p.Message = clip(p.Message, maxMessage)
	raw, err := json.Marshal(p)
	if err != nil { // all fields are text, numbers and bools
		raw = []byte(`{"kind":"internal","message":"an error could not be described"}`)
	}
	return p.Code, raw
}

// panicError is a recovered panic. Its text has no stack: that goes to the statistics.
type panicError struct{ text string }

func (p *panicError) Error() string {
	return "fault in the sandbox library: " + p.text + "; please report it (ngs_stats holds the stack)"
}
