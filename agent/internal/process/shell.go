package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultPath is searched when the environment has no PATH.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// maxArg is what the kernel takes as one argument (32 pages), with room for the end.
const maxArg = 128<<10 - 64

// LookupEnv gives the value of a variable, "" when it is not set.
func LookupEnv(env []string, name string) string {
	i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	if i < 0 {
		return ""
	}
	return env[i][len(name)+1:]
}

// LookPath finds a program as execvp would, with the command's own PATH and directory.
func LookPath(name, cwd, path string) (string, error) {
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
		return Reason(err)
	case st.IsDir() || st.Mode()&0o111 == 0:
		return unix.EACCES
	}
	return nil
}

// Shell finds the sandbox's shell once.
type Shell struct {
	Configured string // a name or a path; "" is bash, or sh where there is none
	Path       string // PATH to look in

	mu    sync.Mutex
	found string
}

// Find gives the shell's path.
func (s *Shell) Find() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found != "" {
		return s.found, nil
	}
	names := []string{"bash", "sh"}
	if s.Configured != "" {
		names = []string{s.Configured}
	}
	for _, n := range names {
		if p, err := LookPath(n, "/", s.Path); err == nil {
			s.found = p
			return p, nil
		}
	}
	return "", fmt.Errorf("the sandbox has no shell: %s not found in its PATH (%s); use an image with a shell, name one in the configuration, or run an argv without shell",
		strings.Join(names, " or "), s.Path)
}

// CommandArg is the argument behind -c with which a shell runs a command. A
// command that is too long for an argument comes with a file, which has to be descriptor 3 of the shell.
func CommandArg(command string) (arg string, file *os.File, err error) {
	if strings.HasPrefix(command, "-") || strings.HasPrefix(command, "+") {
		command = " " + command // some shells would take it for an option even behind -c
	}
	if len(command) <= maxArg {
		return command, nil, nil
	}
	// One argument can't be that long: the shell reads it from a file in memory instead.
	f, err := memoryFile(command)
	if err != nil {
		return "", nil, fmt.Errorf("hold a command of %d bytes: %w", len(command), err)
	}
	return ". /proc/self/fd/3", f, nil
}

// memoryFile holds a long command for the shell, which closes its descriptor first thing.
func memoryFile(command string) (*os.File, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err := f.WriteString("exec 3<&-; " + command + "\n"); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Reason is an error without the name that its message repeats.
func Reason(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// ExitCode is the code that a status stands for, 128+n for death by signal n.
func ExitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
