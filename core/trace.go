package core

import (
	"context"
	"strings"
)

type traceKey struct{}

// WithTraceparent gives a context in which requests to a backend carry parent, the caller's
// span as a W3C traceparent ("00-<32 hex>-<16 hex>-<2 hex>"). A text of another form is left
// out: it ends up in a header of requests, and the trace is worth less than the operation.
func WithTraceparent(ctx context.Context, parent string) context.Context {
	if !validTraceparent(parent) {
		return ctx
	}
	return context.WithValue(ctx, traceKey{}, parent)
}

// Traceparent is the caller's span, for a provider to put in its requests; "" when there is none.
func Traceparent(ctx context.Context) string {
	parent, _ := ctx.Value(traceKey{}).(string)
	return parent
}

// validTraceparent follows the W3C grammar for version 00: lower-case hex, no id of zeros only.
func validTraceparent(s string) bool {
	if len(s) != 55 || s[:3] != "00-" || s[35] != '-' || s[52] != '-' {
		return false
	}
	return hexID(s[3:35]) && hexID(s[36:52]) && isHex(s[53:55])
}

func hexID(s string) bool { return isHex(s) && strings.Trim(s, "0") != "" }

func isHex(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
