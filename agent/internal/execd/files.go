package execd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"
)

// fileInfo describes a file. Links are not followed.
type fileInfo struct {
	Path       string    `json:"path"`
	Type       string    `json:"type"`
	Size       int64     `json:"size"`
	ModifiedAt time.Time `json:"modified_at"`
	CreatedAt  time.Time `json:"created_at"`
	Owner      string    `json:"owner"`
	Group      string    `json:"group"`
	Mode       int       `json:"mode"` // its octal digits, read as a decimal number
}

// names remembers for one request who users and groups are.
type names struct{ users, groups map[uint32]string }

func newNames() names { return names{map[uint32]string{}, map[uint32]string{}} }

func (n names) user(id uint32) string {
	return remembered(n.users, id, func() (string, error) { u, err := user.LookupUid(int(id)); return u.Name, err })
}

func (n names) group(id uint32) string {
	return remembered(n.groups, id, func() (string, error) { g, err := user.LookupGid(int(id)); return g.Name, err })
}

func remembered(known map[uint32]string, id uint32, find func() (string, error)) string {
	if name, ok := known[id]; ok {
		return name
	}
	name, err := find()
	if err != nil {
		name = strconv.FormatUint(uint64(id), 10)
	}
	known[id] = name
	return name
}

// describe tells about a file that lstat has looked at.
func (n names) describe(path string, st fs.FileInfo) fileInfo {
	info := fileInfo{Path: path, Type: "other", Size: st.Size(), ModifiedAt: st.ModTime(), CreatedAt: st.ModTime()}
	switch mode := st.Mode(); {
	case mode.IsRegular():
		info.Type = "file"
	case mode.IsDir():
		info.Type = "directory"
	case mode.Type() == fs.ModeSymlink:
		info.Type = "symlink"
	}
	bits := uint64(st.Mode().Perm())
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		info.Owner, info.Group = n.user(sys.Uid), n.group(sys.Gid)
	}
	info.Mode, _ = strconv.Atoi(strconv.FormatUint(bits, 8)) // digits always parse
	var born unix.Statx_t
	if unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &born) == nil && born.Mask&unix.STATX_BTIME != 0 {
		info.CreatedAt = time.Unix(born.Btime.Sec, int64(born.Btime.Nsec))
	}
	return info
}

func (s *Server) filesInfo(w http.ResponseWriter, r *http.Request) {
	all := map[string]fileInfo{}
	known := newNames()
	for _, asked := range r.URL.Query()["path"] {
		path, err := s.expand(asked)
		if err != nil {
			fail(w, http.StatusBadRequest, codeBadBody, "invalid query parameter 'path': %v", err)
			return
		}
		st, err := os.Lstat(path)
		if err != nil {
			fileFailure(w, "error accessing file: ", fmt.Errorf("file not found: %s: %w", path, err))
			return
		}
		all[asked] = known.describe(path, st)
	}
	reply(w, http.StatusOK, all)
}

func (s *Server) filesPermissions(w http.ResponseWriter, r *http.Request) {
	s.eachPermission(w, r, "error changing permissions for", func(path string, p permission) error { return p.apply(path) })
}

// eachPermission does something with every path that a request gives permissions to, up to the first failure.
func (s *Server) eachPermission(w http.ResponseWriter, r *http.Request, failed string, do func(path string, p permission) error) {
	var body map[string]permission
	if !s.body(w, r, &body) {
		return
	}
	for asked, p := range body {
		path, err := s.expand(asked)
		if err == nil {
			err = do(path, p)
		}
		if err != nil {
			fail(w, http.StatusInternalServerError, codeRuntime, "%s %s. %v", failed, asked, err)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

// body reads a request's JSON; false: it has been answered.
func (s *Server) body(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := decode(w, r, v); err != nil {
		fail(w, http.StatusBadRequest, codeBadBody, "error parsing request, MAYBE invalid body format. %v", err)
		return false
	}
	return true
}

func (s *Server) filesMove(w http.ResponseWriter, r *http.Request) {
	var body []struct {
		Src  string `json:"src"`
		Dest string `json:"dest"`
	}
	if !s.body(w, r, &body) {
		return
	}
	for _, m := range body {
		src, err := s.expand(m.Src)
		var dest string
		if err == nil {
			dest, err = s.expand(m.Dest)
		}
		if err == nil {
			err = move(src, dest)
		}
		if err != nil {
			fileFailure(w, "error accessing file: ", err)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}

// move gives a file another name, which must be free. The directories on the way to it are made.
func move(src, dest string) error {
	if _, err := os.Lstat(src); err != nil {
		if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
			pe.Op = "stat"
		}
		return fmt.Errorf("source path not found: %s: %w", src, err)
	}
	if err := os.MkdirAll(filepath.Dir(dest), 0o755); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dest, unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("destination path already exists: %s", dest)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		// A file system that can't do both in one step.
		if _, err := os.Lstat(dest); err == nil {
			return fmt.Errorf("destination path already exists: %s", dest)
		}
		return os.Rename(src, dest)
	case errors.Is(err, unix.EXDEV):
		return fmt.Errorf("move %s to %s: they are on different file systems; copy it with a command", src, dest)
	case err != nil:
		return &os.LinkError{Op: "rename", Old: src, New: dest, Err: err}
	}
	return nil
}

func (s *Server) filesReplace(w http.ResponseWriter, r *http.Request) {
	var body map[string]struct {
		Old string `json:"old"`
		New string `json:"new"`
	}
	if !s.body(w, r, &body) {
		return
	}
	for _, change := range body {
		if change.Old == "" {
			fail(w, http.StatusBadRequest, codeBadBody, "old content must not be empty")
			return
		}
	}
	type replaced struct {
		Count int `json:"replacedCount"`
	}
	counts := map[string]replaced{}
	for asked, change := range body {
		path, err := s.expand(asked)
		var n int
		if err == nil {
			n, err = replace(path, []byte(change.Old), []byte(change.New))
		}
		if err != nil {
			fileFailure(w, "error replacing content of "+asked+": ", err)
			return
		}
		counts[asked] = replaced{n}
	}
	if r.URL.Query().Get("verbose") == "true" {
		reply(w, http.StatusOK, counts)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// replace exchanges every occurrence of a text in a file.
func replace(path string, before, after []byte) (int, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n := bytes.Count(content, before)
	if n == 0 {
		return 0, nil
	}
	a, err := receive(path, bytes.NewReader(bytes.ReplaceAll(content, before, after)))
	if err != nil {
		return 0, err
	}
	defer a.abandon()
	if a.tmp != "" {
		if err := os.Rename(a.tmp, a.target); err != nil {
			return 0, err
		}
	}
	a.settled = true
	return n, nil
}

func (s *Server) filesRemove(w http.ResponseWriter, r *http.Request) {
	for _, asked := range r.URL.Query()["path"] {
		path, err := s.expand(asked)
		if err == nil {
			var st fs.FileInfo
			if st, err = os.Lstat(path); err == nil && st.IsDir() {
				err = fmt.Errorf("path is a directory: %s", path)
			} else if err == nil {
				err = os.Remove(path)
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			fail(w, http.StatusInternalServerError, codeRuntime, "error removing file %s. %v", asked, err)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}
