package execd

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// queryPath reads the path that a request names; false: it has been answered.
func (s *Server) queryPath(w http.ResponseWriter, r *http.Request) (string, bool) {
	asked := r.URL.Query().Get("path")
	if asked == "" {
		missing(w, "path")
		return "", false
	}
	path, err := s.expand(asked)
	if err != nil {
		fail(w, http.StatusBadRequest, codeBadBody, "invalid query parameter 'path': %v", err)
		return "", false
	}
	return path, true
}

// filesSearch finds regular files below a directory whose name fits a pattern.
func (s *Server) filesSearch(w http.ResponseWriter, r *http.Request) {
	root, ok := s.queryPath(w, r)
	if !ok {
		return
	}
	pattern := r.URL.Query().Get("pattern")
	if pattern == "" {
		pattern = "*"
	}
	if _, err := filepath.Match(pattern, ""); err != nil {
		fail(w, http.StatusBadRequest, codeBadBody, "invalid query parameter 'pattern': %s: %v", pattern, err)
		return
	}
	if _, err := os.Stat(root); err != nil {
		fileFailure(w, "error searching files: ", err)
		return
	}
	list, err := walk(r.Context(), root, -1, func(d fs.DirEntry) bool {
		fits, _ := filepath.Match(pattern, d.Name()) // it has been tried above
		return fits && !d.IsDir() && d.Type() != fs.ModeSymlink
	})
	if err != nil {
		fileFailure(w, "error searching files: ", err)
		return
	}
	reply(w, http.StatusOK, list)
}

// walk lists what is below a directory and wanted, in order of the names, as many
// levels down as depth says; negative is all. What can't be read is left out, as it comes and goes.
func walk(ctx context.Context, root string, depth int, wanted func(fs.DirEntry) bool) ([]fileInfo, error) {
	list, known := []fileInfo{}, newNames()
	base := strings.Count(filepath.Clean(root), "/")
	if filepath.Clean(root) == "/" {
		base = 0
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil || d == nil {
			if path == root {
				return err
			}
			return nil
		}
		if path == root && d.IsDir() {
			return nil
		}
		if wanted(d) {
			if st, err := d.Info(); err == nil {
				list = append(list, known.describe(path, st))
			}
		}
		if depth >= 0 && d.IsDir() && strings.Count(path, "/")-base >= depth {
			return fs.SkipDir
		}
		return nil
	})
	return list, err
}

func (s *Server) listDirectory(w http.ResponseWriter, r *http.Request) {
	root, ok := s.queryPath(w, r)
	if !ok {
		return
	}
	depth := 1
	if asked := r.URL.Query().Get("depth"); asked != "" {
		n, err := strconv.Atoi(asked)
		if err != nil || n < 0 {
			fail(w, http.StatusBadRequest, codeBadBody, "invalid query parameter 'depth': %s", asked)
			return
		}
		depth = n
	}
	st, err := os.Lstat(root)
	switch {
	case err != nil:
		fileFailure(w, "error listing directory: ", err)
		return
	case st.Mode().Type() == fs.ModeSymlink:
		fail(w, http.StatusBadRequest, codeBadBody, "path is a symbolic link, refusing to traverse: %s", root)
		return
	case !st.IsDir():
		fail(w, http.StatusBadRequest, codeBadBody, "path is not a directory: %s", root)
		return
	}
	list, err := walk(r.Context(), root, depth, func(fs.DirEntry) bool { return depth > 0 })
	if err != nil {
		fileFailure(w, "error listing directory: ", err)
		return
	}
	reply(w, http.StatusOK, list)
}

func (s *Server) makeDirectories(w http.ResponseWriter, r *http.Request) {
	s.eachPermission(w, r, "error creating directory", func(path string, p permission) error {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		return p.apply(path)
	})
}

// errRoot keeps a request with a wrong path from emptying the sandbox.
var errRoot = errors.New("it is the root directory")

// removable gives the path of what may be removed.
func (s *Server) removable(asked string) (string, error) {
	path, err := s.expand(asked)
	if err == nil && filepath.Clean(path) == "/" {
		err = errRoot
	}
	return path, err
}

func (s *Server) removeDirectories(w http.ResponseWriter, r *http.Request) {
	for _, asked := range r.URL.Query()["path"] {
		path, err := s.removable(asked)
		if err == nil {
			err = os.RemoveAll(path)
		}
		if err != nil {
			fail(w, http.StatusInternalServerError, codeRuntime, "error removing directory %s. %v", asked, err)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
}
