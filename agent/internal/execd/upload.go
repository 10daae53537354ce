package execd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
)

// maxMetadata bounds what describes one file.
const maxMetadata = 1 << 20

// fileMetadata describes a file of an upload, and what permissions are to be changed.
type fileMetadata struct {
	Path string `json:"path"`
	permission
}

// permission is whom a file belongs to and who may do what with it. What is empty stays as it is.
type permission struct {
	Owner string `json:"owner"`
	Group string `json:"group"`
	Mode  int    `json:"mode"` // its octal digits, read as a decimal number
}

// refusal is why an upload is refused.
type refusal struct {
	status int
	code   string
	msg    string
}

func (r *refusal) Error() string { return r.msg }

func refuse(status int, code, format string, args ...any) error {
	return &refusal{status, code, fmt.Sprintf(format, args...)}
}

// upload writes files as they come, each one behind the metadata that describe it.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	form, err := r.MultipartReader()
	if err != nil {
		fail(w, http.StatusBadRequest, codeBadFile, "multipart form is empty")
		return
	}
	u := upload{s: s}
	defer u.abandon()
	if err := u.read(form); err != nil {
		var no *refusal
		if !errors.As(err, &no) {
			no = &refusal{http.StatusBadRequest, codeBadFile, fmt.Sprintf("error reading the upload: %v", err)}
		}
		fail(w, no.status, no.code, "%s", no.msg)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// upload is one request: files wait beside their targets until the form has been
// found complete. In the usual order that takes no memory; what comes before its metadata waits in a file without a name.
type upload struct {
	s     *Server
	meta  []fileMetadata
	files []*waiting
}

// waiting is one file of the form.
type waiting struct {
	arrival *arrival // nil as long as it is not known where it belongs
	early   *os.File
}

func (u *upload) read(form *multipart.Reader) error {
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		// Parts without a file name are ordinary fields, which do not count.
		switch {
		case part.FileName() == "":
		case part.FormName() == "metadata":
			err = u.metadata(part)
		case part.FormName() == "file":
			err = u.file(part)
		}
		if err != nil {
			return err
		}
	}
	switch {
	case len(u.meta) == 0:
		return refuse(http.StatusBadRequest, codeBadMetadata, "metadata file is missing")
	case len(u.files) == 0:
		return refuse(http.StatusBadRequest, codeBadContent, "file is missing")
	case len(u.files) != len(u.meta):
		return refuse(http.StatusBadRequest, codeBadFile, "metadata and file count mismatch: %d vs %d", len(u.meta), len(u.files))
	}
	for i, f := range u.files {
		if f.early == nil {
			continue
		}
		if _, err := f.early.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if err := u.place(i, f.early); err != nil {
			return err
		}
	}
	for i, f := range u.files {
		if err := u.s.settle(f.arrival, u.meta[i]); err != nil {
			return err
		}
	}
	return nil
}

func (u *upload) metadata(part io.Reader) error {
	var m fileMetadata
	if err := json.NewDecoder(io.LimitReader(part, maxMetadata)).Decode(&m); err != nil {
		return refuse(http.StatusBadRequest, codeBadMetadata, "invalid metadata format. %v", err)
	}
	if m.Path == "" {
		return refuse(http.StatusBadRequest, codeBadMetadata, "metadata path is empty")
	}
	u.meta = append(u.meta, m)
	return nil
}

func (u *upload) file(part io.Reader) error {
	f := &waiting{}
	u.files = append(u.files, f)
	if i := len(u.files) - 1; i < len(u.meta) {
		return u.place(i, part)
	}
	early, err := unnamedFile()
	if err != nil {
		return refuse(http.StatusInternalServerError, codeRuntime, "error holding an upload: %v", err)
	}
	f.early = early
	if _, err := io.Copy(early, part); err != nil {
		return err
	}
	return nil
}

// place lets the bytes of a file wait beside its target.
func (u *upload) place(i int, src io.Reader) error {
	path, err := u.s.expand(u.meta[i].Path)
	if err != nil {
		return refuse(http.StatusBadRequest, codeBadMetadata, "invalid metadata path. %v", err)
	}
	u.files[i].arrival, err = receive(path, src)
	return err
}

// abandon removes what has not been settled.
func (u *upload) abandon() {
	for _, f := range u.files {
		if f.arrival != nil {
			f.arrival.abandon()
		}
		if f.early != nil {
			_ = f.early.Close()
		}
	}
}
