package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// makeWorkdir makes a directory that a spec names, with its parents, and gives
// those that were not there before, outermost first.
func makeWorkdir(dir string) (made []string, err error) {
	dir = filepath.Clean(dir)
	for p := dir; ; p = filepath.Dir(p) {
		st, err := os.Stat(p)
		if err == nil {
			if !st.IsDir() {
				return nil, fmt.Errorf("workdir %s: %s is not a directory", dir, p)
			}
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look at workdir: %w", err)
		}
		made = append([]string{p}, made...)
	}
	for i, p := range made {
		if err := os.Mkdir(p, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			unmake(made[:i])
			return nil, fmt.Errorf("make workdir: %w", err)
		}
	}
	return made, nil
}

// unmake removes directories that makeWorkdir made, as far as they are still empty.
func unmake(made []string) {
	for i := len(made) - 1; i >= 0; i-- {
		if os.Remove(made[i]) != nil {
			return
		}
	}
}

// makeWorkspace makes the workspace of a spec that names none.
func makeWorkspace(root, id string) (string, error) {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", fmt.Errorf("make workspace_root: %w", err)
	}
	dir := filepath.Join(root, id)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the workspace: %w", err)
	}
	return dir, nil
}

// makeTmp makes a directory to serve as a sandbox's /tmp: open to all inside,
// whatever this process's umask is.
func makeTmp(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return os.Chmod(dir, 0o777|os.ModeSticky)
}

// removeTree removes a directory that commands wrote to. They may have taken
// the right to change it away from us; nothing may run in it any more.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	walkErr := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if d == nil || !d.IsDir() {
			return nil
		}
		// The first visit comes before the directory is read: opened up now, it can be.
		if err == nil {
			return os.Chmod(p, 0o700)
		}
		return nil
	})
	if err := os.RemoveAll(dir); err != nil {
		return errors.Join(err, walkErr)
	}
	return nil
}
