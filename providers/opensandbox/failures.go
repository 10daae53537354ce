package opensandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Codes of errors that say what became of a request that the server handed on.
const (
	codeNotReached  = "BACKEND_CONNECTION_FAILED" // it never came to the sandbox
	codeNoPodIP     = "KUBERNETES::POD_IP_NOT_AVAILABLE"
	codeNotFound    = "FILE_NOT_FOUND"
	codePTYNotFound = "CONTEXT_NOT_FOUND"
	codeRuntime     = "RUNTIME_ERROR" // a daemon's own, for whatever it could not do
)

// apiError is an answer other than success, of the server or of a daemon.
type apiError struct {
	status  int
	code    string // "" when the answer has none
	message string
	request string // the server's name for the request
}

func (e *apiError) Error() string {
	text := fmt.Sprintf("HTTP %d", e.status)
	if e.code != "" {
		text += " " + e.code
	}
	if e.message != "" {
		text += ": " + e.message
	}
	if e.request != "" {
		text += " (request " + e.request + ")"
	}
	return text
}

// newAPIError reads an error's body, in any of the shapes that servers and daemons send.
func newAPIError(res *http.Response, body []byte) *apiError {
	e := &apiError{status: res.StatusCode, request: clip(res.Header.Get("X-Request-ID"), 80)}
	type failure struct {
		Code    string          `json:"code"`
		Message string          `json:"message"`
		Error   string          `json:"error"`
		Detail  json.RawMessage `json:"detail"`
	}
	var f failure
	// The first JSON value counts: some answers have two.
	if err := json.NewDecoder(strings.NewReader(string(body))).Decode(&f); err != nil {
		e.message = clip(string(body), 500)
		return e
	}
	var nested failure
	if f.Code == "" && len(f.Detail) > 0 && json.Unmarshal(f.Detail, &nested) == nil && nested.Code != "" {
		f = nested
	}
	e.code, e.message = clip(f.Code, 100), f.Message
	switch {
	case e.message != "":
	case f.Error != "":
		e.message = f.Error
	case len(f.Detail) > 0:
		e.message = validation(f.Detail)
	}
	e.message = clip(e.message, 500)
	return e
}

// validation gives a refused request's reasons, without the values that it was refused for.
func validation(detail json.RawMessage) string {
	var text string
	if json.Unmarshal(detail, &text) == nil {
		return text
	}
	var items []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	}
	if json.Unmarshal(detail, &items) != nil {
		return ""
	}
	var all []string
	for _, it := range items {
		var at []string
		for _, l := range it.Loc {
			at = append(at, fmt.Sprint(l))
		}
		all = append(all, strings.Join(at, ".")+": "+it.Msg)
	}
	return strings.Join(all, "; ")
}

// clip makes an untrusted text fit into a message. What is left out is in the middle: the reason is often the end.
func clip(s string, most int) string {
	s = strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most/2], "") + "..." + strings.ToValidUTF8(s[len(s)-most/2:], "")
	}
	return s
}

func statusOf(err error) int {
	var e *apiError
	if errors.As(err, &e) {
		return e.status
	}
	return 0
}

func codeOf(err error) string {
	var e *apiError
	if errors.As(err, &e) {
		return e.code
	}
	return ""
}

// sandboxGone tells whether the server says that there is no such sandbox.
func sandboxGone(err error) bool {
	var e *apiError
	if !errors.As(err, &e) {
		return false
	}
	if e.status == http.StatusNotFound || strings.HasSuffix(e.code, "SANDBOX_NOT_FOUND") {
		return true
	}
	text := strings.ToLower(e.message)
	return strings.Contains(text, "sandbox") && strings.Contains(text, "not found")
}

// neverStarted tells whether a command's request was answered in a way that says that it did not reach
// the daemon. A gateway's answer that leaves this open does not count: the command may have run.
func neverStarted(err error) bool {
	var e *apiError
	if !errors.As(err, &e) || e.status != http.StatusBadGateway {
		return false
	}
	return e.code == codeNotReached || e.code == "" && (e.message == "" || strings.EqualFold(e.message, "Bad Gateway"))
}

var retryableStatuses = []int{408, 409, 425, 429, 500, 502, 503, 504}

var retryableTexts = []string{
	"connection refused", "connection reset", "all connection attempts failed", "gateway timeout", "incomplete chunked read",
	"peer closed connection", "pod ip is not yet available", "pod may still be starting", "errimagepull", "imagepullbackoff",
	"get endpoint for sandbox", "pod failed", "podfailed", "remote protocol error", "service unavailable", "server disconnected",
	"temporarily unavailable", "timed out", "timeout",
}

var retryableNumbers = regexp.MustCompile(`(?:http|status code:) (?:408|409|425|429|500|502|503|504)\b`)

// lasting are the ends of what daemons say of a file's place or owner that will be as wrong the next time.
var lasting = []string{
	"not a directory", "is a directory", "permission denied", "operation not permitted", "read-only file system",
	"file name too long", "too many levels of symbolic links", "invalid argument",
}

// isLasting tells whether a daemon could not do something for a reason that stays. Its status is the one of all that a
// server could not do just now.
func (e *apiError) isLasting() bool {
	return e.code == codeRuntime && slices.ContainsFunc(lasting, func(end string) bool { return strings.HasSuffix(e.message, end) })
}

// mayHeal tells whether the same request may succeed later.
func mayHeal(err error) bool {
	var api *apiError
	var transport *transportError
	switch kind := core.KindOf(err); {
	case errors.Is(err, context.Canceled) || kind == core.KindCanceled:
		return false
	case kind == core.KindInvalid || kind == core.KindUnknownKey || kind == core.KindNotSupported || kind == core.KindAuth:
		return false
	case kind == core.KindVerification || kind == core.KindTimeout:
		return true
	case errors.As(err, &api):
		if api.isLasting() {
			return false
		}
		if slices.Contains(retryableStatuses, api.status) {
			return true
		}
		if api.status < 500 {
			return false
		}
	case errors.As(err, &transport):
		return transport.what != "bad URL"
	}
	text := strings.ToLower(err.Error())
	return slices.ContainsFunc(retryableTexts, func(t string) bool { return strings.Contains(text, t) }) || retryableNumbers.MatchString(text)
}

// backoff is how a request is repeated: after attempt n it waits a random time up
// to first * 2^(n-1), at most limit.
type backoff struct {
	retries      int
	first, limit time.Duration
	// again decides on errors; nil is mayHeal.
	again func(error) bool
	// onlyWithin leaves errors of this side's own patience alone.
	lateIsFinal bool
}

// retry makes an operation until it succeeds, its error is final or its attempts are used up.
func (b backoff) retry(ctx context.Context, what string, op func(ctx context.Context) error) error {
	again := b.again
	if again == nil {
		again = mayHeal
	}
	for n := 0; ; n++ {
		err := op(ctx)
		if err == nil || ctx.Err() != nil || n >= b.retries || !again(err) {
			return err
		}
		if b.lateIsFinal && isLate(err) {
			return err
		}
		wait := b.limit
		if n < 40 && b.first<<n < b.limit {
			wait = b.first << n
		}
		if wait > 0 {
			wait = rand.N(wait)
		}
		slog.WarnContext(ctx, what+" failed and is tried again", "provider", providerName, "attempt", n+1, "of", b.retries+1, "wait_s", wait.Seconds(), "error", err.Error())
		if !pause(ctx, wait) {
			return err
		}
	}
}

// isLate tells whether an error is this side's own patience.
func isLate(err error) bool {
	var t *transportError
	return errors.As(err, &t) && t.timeout || core.KindOf(err) == core.KindTimeout
}

// kindOf classifies an error for callers.
func kindOf(err error, otherwise core.Kind) core.Kind {
	var e *core.Error
	if errors.As(err, &e) {
		return e.Kind
	}
	switch status := statusOf(err); {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return core.KindAuth
	case status == http.StatusNotFound:
		return core.KindNotFound
	case status == http.StatusConflict:
		return core.KindConflict
	case isLate(err):
		return core.KindTimeout
	}
	return otherwise
}

// failed makes an error of an operation on a sandbox.
func failed(ctx context.Context, op, id, what string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded) && core.KindOf(context.Cause(ctx)) != core.KindTimeout {
		return &core.Error{Kind: core.KindCanceled, Op: op, Provider: providerName, SandboxID: id, Err: fmt.Errorf("canceled while %s: %w", what, context.Cause(ctx))}
	}
	return &core.Error{Kind: kindOf(err, core.KindSandbox), Op: op, Provider: providerName, SandboxID: id, Err: fmt.Errorf("%s failed: %w", what, err)}
}
