package core

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// appDir is the project's folder below the user's base directories.
const appDir = "nemo-gym-sandbox"

// StateDir is where what must outlive a process is kept, made with mode 0700:
// $XDG_STATE_HOME or ~/.local/state, else a private folder below the temporary directory.
func StateDir() (string, error) { return baseDir("XDG_STATE_HOME", ".local/state") }

// CacheDir is where what can be made again is kept: $XDG_CACHE_HOME or ~/.cache,
// else a private folder below the temporary directory.
func CacheDir() (string, error) { return baseDir("XDG_CACHE_HOME", ".cache") }

func baseDir(env, home string) (string, error) {
	dir := os.Getenv(env)
	if !filepath.IsAbs(dir) {
		if h, err := os.UserHomeDir(); err == nil && filepath.IsAbs(h) {
			dir = filepath.Join(h, home)
		}
	}
	if dir != "" {
		if err := os.MkdirAll(filepath.Join(dir, appDir), 0o700); err == nil {
			return filepath.Join(dir, appDir), nil
		}
	}
	// No writable home, as for a service user: the temporary directory is shared
	// with others, so the folder must be ours and closed to them.
	dir = filepath.Join(os.TempDir(), fmt.Sprintf("%s-%d", appDir, os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return "", fmt.Errorf("make a private folder: %w", err)
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return "", fmt.Errorf("look at %s: %w", dir, err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || !st.IsDir() || int(sys.Uid) != os.Getuid() || st.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf("%s is not a private folder of this user; remove it or set %s", dir, env)
	}
	return dir, nil
}
