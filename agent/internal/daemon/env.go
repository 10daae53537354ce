package daemon

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// defaultPath is searched when the environment has no PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// baseEnv splits the agent's environment into what every command gets and the
// HOME that was chosen for all users, if it was.
func baseEnv(env []string, keepHome bool) (base []string, home string) {
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok:
		case name == "HOME":
			if keepHome {
				home = value
			}
		default:
			base = append(base, kv)
		}
	}
	if lookupEnv(base, "PATH") == "" {
		base = append(base, "PATH="+defaultPath)
	}
	return base, home
}

// environ is a command's environment: the sandbox's, then the user's home, then the call's.
func (s *server) environ(who identity, call map[string]string, tag string) []string {
	env := make([]string, 0, len(s.base)+len(call)+2)
	for _, kv := range s.base {
		name, _, _ := strings.Cut(kv, "=")
		if _, over := call[name]; !over {
			env = append(env, kv)
		}
	}
	if _, over := call["HOME"]; !over {
		home := s.home
		if home == "" {
			home = who.home
		}
		env = append(env, "HOME="+home)
	}
	for k, v := range call {
		env = append(env, k+"="+v)
	}
	if tag != "" {
		env = append(env, tag)
	}
	return env
}

func lookupEnv(env []string, name string) string {
	i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	if i < 0 {
		return ""
	}
	return env[i][len(name)+1:]
}

// lookPath finds a program as execvp would, with the command's own PATH and directory.
func lookPath(name, cwd, path string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(cwd, name)
		}
		return name, executable(name)
	}
	err := fmt.Errorf("command not found: %w", fs.ErrNotExist)
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(cwd, dir)
		}
		p := filepath.Join(dir, name)
		switch e := executable(p); {
		case e == nil:
			return p, nil
		case os.IsPermission(e):
			err = e
		}
	}
	return "", err
}

func executable(path string) error {
	st, err := os.Stat(path)
	switch {
	case err != nil:
		return reason(err)
	case st.IsDir() || st.Mode()&0o111 == 0:
		return unix.EACCES
	}
	return nil
}

// shell finds the sandbox's shell once.
type shell struct {
	configured string
	path       string

	mu    sync.Mutex
	found string
}

func (s *shell) find() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found != "" {
		return s.found, nil
	}
	names := []string{"bash", "sh"}
	if s.configured != "" {
		names = []string{s.configured}
	}
	for _, n := range names {
		if p, err := lookPath(n, "/", s.path); err == nil {
			s.found = p
			return p, nil
		}
	}
	return "", fmt.Errorf("the sandbox has no shell: %s not found in its PATH (%s); use an image with a shell, name one in the configuration, or run an argv without shell",
		strings.Join(names, " or "), s.path)
}
