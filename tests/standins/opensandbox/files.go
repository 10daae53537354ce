package opensandbox

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// Limits of one upload in the memory of the stand-in.
const maxMetadata = 64 << 10

func (d *daemon) upload(w http.ResponseWriter, r *http.Request) {
	form, err := r.MultipartReader()
	if err != nil {
		fail(w, http.StatusBadRequest, "INVALID_FILE", "multipart form is empty")
		return
	}
	var meta struct {
		Path  string `json:"path"`
		Owner string `json:"owner"`
		Group string `json:"group"`
		Mode  int    `json:"mode"`
	}
	first, err := form.NextPart()
	if err != nil || first.FormName() != "metadata" || first.FileName() == "" {
		fail(w, http.StatusBadRequest, "INVALID_FILE_METADATA", "metadata file is missing")
		return
	}
	if err := json.NewDecoder(io.LimitReader(first, maxMetadata)).Decode(&meta); err != nil || meta.Path == "" {
		fail(w, http.StatusBadRequest, "INVALID_FILE_METADATA", "metadata can't be read")
		return
	}
	second, err := form.NextPart()
	if err != nil || second.FormName() != "file" || second.FileName() == "" {
		fail(w, http.StatusBadRequest, "INVALID_FILE_CONTENT", "file is missing")
		return
	}
	if err := d.put(d.inside(meta.Path), second, meta.Owner, meta.Group, meta.Mode); err != nil {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", "error writing file. "+err.Error())
	}
}

// put writes a file, when all of it has come.
func (d *daemon) put(path string, r io.Reader, owner, group string, mode int) error {
	content, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return err
	}
	if mode != 0 {
		bits, err := strconv.ParseUint(strconv.Itoa(mode), 8, 32)
		if err != nil {
			return err
		}
		if err := os.Chmod(path, fs.FileMode(bits)); err != nil {
			return err
		}
	}
	if owner != "" || group != "" {
		whom := owner
		if group != "" {
			whom += ":" + group
		}
		return exec.Command("chown", whom, path).Run()
	}
	return nil
}

func (d *daemon) download(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	if path == "" {
		fail(w, http.StatusBadRequest, "MISSING_QUERY", "missing query parameter 'path'")
		return
	}
	if st, err := os.Stat(d.inside(path)); err == nil && st.Mode()&fs.ModeNamedPipe != 0 {
		<-r.Context().Done() // as nobody writes into it
		return
	}
	f, err := os.Open(d.inside(path))
	if errors.Is(err, fs.ErrNotExist) {
		fail(w, http.StatusNotFound, "FILE_NOT_FOUND", "file not found. "+err.Error())
		return
	}
	if err != nil {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
		return
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if st.IsDir() {
		w.Header().Set("Content-Length", "9223372036854775807")
		w.WriteHeader(http.StatusOK)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(st.Size(), 10))
	_, _ = io.Copy(w, f)
}

func (d *daemon) info(w http.ResponseWriter, r *http.Request) {
	all := map[string]any{}
	for _, path := range r.URL.Query()["path"] {
		st, err := os.Lstat(d.inside(path)) // as real daemons, which tell of links themselves
		if err != nil {
			fail(w, http.StatusNotFound, "FILE_NOT_FOUND", "file not found. "+err.Error())
			return
		}
		kind := "file"
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			kind = "symlink"
		case st.IsDir():
			kind = "directory"
		case !st.Mode().IsRegular():
			kind = "other"
		}
		mode, err := strconv.Atoi(strconv.FormatUint(uint64(st.Mode().Perm()), 8))
		if err != nil {
			mode = 0
		}
		changed := st.ModTime().UTC().Format(time.RFC3339)
		all[path] = map[string]any{"path": path, "type": kind, "size": st.Size(), "modified_at": changed, "created_at": changed, "owner": "root", "group": "root", "mode": mode}
	}
	reply(w, http.StatusOK, all)
}

func (d *daemon) unlink(w http.ResponseWriter, r *http.Request) {
	for _, path := range r.URL.Query()["path"] {
		if err := os.Remove(d.inside(path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", "error removing file. "+err.Error())
			return
		}
	}
}

func (d *daemon) directories(w http.ResponseWriter, r *http.Request) {
	var body map[string]json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "error parsing request. "+err.Error())
		return
	}
	for path := range body {
		if err := os.MkdirAll(d.inside(path), 0o755); err != nil {
			fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
			return
		}
	}
}

func (d *daemon) removeDirectory(w http.ResponseWriter, r *http.Request) {
	if err := os.RemoveAll(d.inside(r.URL.Query().Get("path"))); err != nil {
		fail(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
	}
}
