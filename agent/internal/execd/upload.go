package execd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
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
// found complete. The usual order needs no memory; bytes that come before what describes them are refused.
type upload struct {
	s       *Server
	meta    []fileMetadata
	arrived []*arrival
	early   int // files that came before their metadata
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
	files := len(u.arrived) + u.early
	switch {
	case len(u.meta) == 0:
		return refuse(http.StatusBadRequest, codeBadMetadata, "metadata file is missing")
	case files == 0:
		return refuse(http.StatusBadRequest, codeBadContent, "file is missing")
	case files != len(u.meta):
		return refuse(http.StatusBadRequest, codeBadFile, "metadata and file count mismatch: %d vs %d", len(u.meta), files)
	case u.early > 0:
		return refuse(http.StatusBadRequest, codeBadFile, "a file came before the metadata that describe it; send them first")
	}
	for i, a := range u.arrived {
		if err := u.s.settle(a, u.meta[i]); err != nil {
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
	if len(u.arrived)+u.early >= len(u.meta) {
		u.early++
		_, err := io.Copy(io.Discard, part)
		return err
	}
	path, err := u.s.expand(u.meta[len(u.arrived)].Path)
	if err != nil {
		return refuse(http.StatusBadRequest, codeBadMetadata, "invalid metadata path. %v", err)
	}
	a, err := receive(path, part)
	if err != nil {
		return err
	}
	u.arrived = append(u.arrived, a)
	return nil
}

// abandon removes what has not been settled.
func (u *upload) abandon() {
	for _, a := range u.arrived {
		a.abandon()
	}
}
