package dispatch

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// traced puts the caller's span, a field that every request may have, into the operation's
// context. A request without one is not parsed for it.
func traced(ctx context.Context, req []byte) context.Context {
	if !bytes.Contains(req, []byte(`"traceparent"`)) {
		return ctx
	}
	var r struct {
		Traceparent string `json:"traceparent"`
	}
	if json.Unmarshal(req, &r) != nil {
		return ctx // the handler says what is wrong with it
	}
	return core.WithTraceparent(ctx, r.Traceparent)
}
