package execd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
)

// expand gives the path that a request means: variables are those of the
// daemon's environment, a leading ~ is its home.
func (s *Server) expand(path string) (string, error) {
	var unknown []string
	path = os.Expand(path, func(name string) string {
		i := slices.IndexFunc(s.cfg.Env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		if i < 0 {
			unknown = append(unknown, name)
			return ""
		}
		return s.cfg.Env[i][len(name)+1:]
	})
	if len(unknown) > 0 {
		return "", fmt.Errorf("path references undefined environment variables: %s", strings.Join(unknown, ", "))
	}
	if path == "~" || strings.HasPrefix(path, "~/") {
		home := process.LookupEnv(s.cfg.Env, "HOME")
		if home == "" {
			who, err := s.users.Resolve("")
			if err != nil {
				return "", fmt.Errorf("find the home directory: %w", err)
			}
			home = who.Home
		}
		path = filepath.Join(home, path[1:])
	}
	return path, nil
}

// workdir finds out where a command shall run; the error is the reason why it can't.
func (s *Server) workdir(cwd string) (string, error) {
	if cwd == "" {
		return "", nil
	}
	dir, err := s.expand(cwd)
	if err != nil {
		return "", fmt.Errorf("cannot resolve working directory %q: %w", cwd, err)
	}
	st, err := os.Stat(dir)
	switch {
	case err != nil:
		return "", fmt.Errorf("working directory does not exist: %s: %w", dir, err)
	case !st.IsDir():
		return "", fmt.Errorf("working directory path is not a directory: %s", dir)
	}
	return dir, nil
}
