package execd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/sys/user"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/files"
)

// arrival is a file that has come and waits beside its target to take its place.
type arrival struct {
	target  string
	tmp     string // "" when it has been written into the target itself
	settled bool
}

// receive writes the bytes of a file. The directories on the way to it are made.
func receive(path string, src io.Reader) (*arrival, error) {
	internal := func(format string, args ...any) error {
		return refuse(http.StatusInternalServerError, codeRuntime, format, args...)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, internal("error creating target directory %s. %v", dir, err)
	}
	target, err := files.FollowLinks(path)
	if err != nil {
		return nil, internal("error opening destination file %s. %v", path, err)
	}
	st, err := os.Stat(target)
	switch {
	case err == nil && st.IsDir():
		return nil, internal("error opening destination file %s. %v", path, &fs.PathError{Op: "open", Path: path, Err: syscall.EISDIR})
	case err == nil && !st.Mode().IsRegular():
		return &arrival{target: target}, writeInto(target, src)
	}
	dst, tmp, terr := files.Beside(target)
	if terr != nil {
		return nil, internal("error opening destination file %s. %v", path, terr)
	}
	a := &arrival{target: target, tmp: tmp}
	_, cerr := io.Copy(dst, src)
	if cerr == nil {
		// As a new file is made, or as the one was that it replaces.
		mode := fs.FileMode(0o777) &^ umask()
		if err == nil {
			mode = st.Mode().Perm()
			if sys, ok := st.Sys().(*syscall.Stat_t); ok {
				cerr = dst.Chown(int(sys.Uid), int(sys.Gid))
			}
		}
		cerr = errors.Join(cerr, dst.Chmod(mode))
	}
	if cerr = errors.Join(cerr, dst.Close()); cerr != nil {
		a.abandon()
		return nil, internal("error writing file %s. %v", path, cerr)
	}
	return a, nil
}

// writeInto writes to what is no regular file, such as a device.
func writeInto(target string, src io.Reader) error {
	dst, err := os.OpenFile(target, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = io.Copy(dst, src)
		err = errors.Join(err, dst.Close())
	}
	if err != nil {
		return refuse(http.StatusInternalServerError, codeRuntime, "error writing file %s. %v", target, err)
	}
	return nil
}

// settle lets a file take its place and gives it its owner and its mode.
func (s *Server) settle(a *arrival, m fileMetadata) error {
	now := a.tmp
	if now == "" {
		now = a.target
	}
	// Before it can be seen. That an owner is not known does not keep the bytes from their place.
	perr := m.apply(now)
	if a.tmp != "" {
		if err := os.Rename(a.tmp, a.target); err != nil {
			return refuse(http.StatusInternalServerError, codeRuntime, "error writing file %s. %v", a.target, err)
		}
	}
	a.settled = true
	if err := perr; err != nil {
		return refuse(http.StatusInternalServerError, codeRuntime, "error chmoding file %s. %v", a.target, err)
	}
	return nil
}

// umask is that of this process, which never changes it.
var umask = sync.OnceValue(func() fs.FileMode {
	const usual = 0o022
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return usual
	}
	for line := range strings.Lines(string(raw)) {
		if digits, ok := strings.CutPrefix(line, "Umask:"); ok {
			if bits, err := strconv.ParseUint(strings.TrimSpace(digits), 8, 32); err == nil {
				return fs.FileMode(bits) & fs.ModePerm
			}
		}
	}
	return usual
})

// abandon removes a file that has not taken its place.
func (a *arrival) abandon() {
	if !a.settled && a.tmp != "" {
		_ = os.Remove(a.tmp)
	}
}

// apply changes a file's owner and mode.
func (p permission) apply(path string) error {
	uid, gid := -1, -1
	if p.Owner != "" {
		u, err := user.LookupUser(p.Owner)
		if err != nil {
			return fmt.Errorf("failed to lookup user %s: user: unknown user %s", p.Owner, p.Owner)
		}
		uid = u.Uid
	}
	if p.Group != "" {
		g, err := user.LookupGroup(p.Group)
		if err != nil {
			return fmt.Errorf("failed to lookup group %s: group: unknown group %s", p.Group, p.Group)
		}
		gid = g.Gid
	}
	if uid >= 0 || gid >= 0 {
		if err := os.Chown(path, uid, gid); err != nil {
			return err
		}
	}
	if p.Mode == 0 {
		return nil
	}
	bits, err := strconv.ParseUint(strconv.Itoa(p.Mode), 8, 32)
	if err != nil {
		return err
	}
	return os.Chmod(path, fileMode(bits))
}

// fileMode reads the bits of chmod.
func fileMode(bits uint64) fs.FileMode {
	mode := fs.FileMode(bits) & fs.ModePerm
	for _, b := range []struct {
		bit  uint64
		mode fs.FileMode
	}{{syscall.S_ISUID, fs.ModeSetuid}, {syscall.S_ISGID, fs.ModeSetgid}, {syscall.S_ISVTX, fs.ModeSticky}} {
		if bits&b.bit != 0 {
			mode |= b.mode
		}
	}
	return mode
}
