package docker

import (
	"context"
	"path"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// KeepDefaults implements core.DefaultsKeeper.
func (i *instance) KeepDefaults(ctx context.Context, d core.Defaults) error {
	return i.run.keepDefaults(ctx, d)
}

func (r *agentRunner) keepDefaults(ctx context.Context, d core.Defaults) error {
	return r.client.SetDefaults(ctx, d)
}

func (r *engineRunner) keepDefaults(_ context.Context, d core.Defaults) error {
	r.keptMu.Lock()
	defer r.keptMu.Unlock()
	r.kept = d
	return nil
}

func (r *engineRunner) keptDefaults() core.Defaults {
	r.keptMu.Lock()
	defer r.keptMu.Unlock()
	return r.kept
}

// inside is the path of a file as the scripts get it, which run in the container's own directory.
func (r *engineRunner) inside(p string) string {
	if dir := r.keptDefaults().Workdir; dir != "" && !path.IsAbs(p) {
		return path.Join(dir, p)
	}
	return path.Clean(p)
}
