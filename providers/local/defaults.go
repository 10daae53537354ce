package local

import (
	"context"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// KeepDefaults implements core.DefaultsKeeper.
func (in *instance) KeepDefaults(ctx context.Context, d core.Defaults) error {
	return in.client.SetDefaults(ctx, d)
}
