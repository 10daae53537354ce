package docker

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// writeFiles puts the spec's files into a new sandbox, in their order.
func writeFiles(ctx context.Context, inst *instance, files []core.File) (err error) {
	if len(files) == 0 {
		return nil
	}
	dir, err := os.MkdirTemp("", "nemo-gym-files-")
	if err != nil {
		return fmt.Errorf("write the spec's files: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	local := filepath.Join(dir, "file")
	for _, f := range files {
		if err := os.WriteFile(local, []byte(f.Content), 0o644); err != nil {
			return fmt.Errorf("write the spec's file %s: %w", f.Path, err)
		}
		if err := inst.Upload(ctx, local, f.Path); err != nil {
			return fmt.Errorf("write the spec's file %s: %w", f.Path, err)
		}
	}
	return nil
}
