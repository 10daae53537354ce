package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// writeFiles puts the spec's files into a new sandbox, in their order.
func writeFiles(ctx context.Context, inst *instance, files []core.File) error {
	if len(files) == 0 {
		return nil
	}
	if err := inst.run.writeFiles(ctx, files); err != nil {
		return fmt.Errorf("write the spec's files: %w", err)
	}
	return nil
}

func (r *agentRunner) writeFiles(ctx context.Context, files []core.File) error {
	return r.client.WriteFiles(ctx, files)
}

func (r *engineRunner) writeFiles(ctx context.Context, files []core.File) error {
	dir, err := os.MkdirTemp("", "nemo-gym-files-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	local := filepath.Join(dir, "file")
	for _, f := range files {
		if err := os.WriteFile(local, []byte(f.Content), 0o644); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		if err := r.upload(ctx, local, f.Path); err != nil {
			return err
		}
	}
	return nil
}
