package local

import (
	"context"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// OpenPTY implements core.PTYOpener.
func (in *instance) OpenPTY(ctx context.Context, spec core.PTYSpec) (core.PTYSession, error) {
	if err := checkUser(spec.User); err != nil {
		return nil, err
	}
	spec.User = "" // it is the only one there is
	return in.client.OpenPTY(ctx, spec)
}

// AttachPTY implements core.PTYAttacher.
func (in *instance) AttachPTY(ctx context.Context, id string, takeover bool, since int64) (core.PTYSession, error) {
	return in.client.AttachPTY(ctx, id, takeover, since)
}
