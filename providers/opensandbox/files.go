package opensandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// fileMetadata says where an uploaded file goes. The daemon takes the octal digits of a mode as a decimal number.
type fileMetadata struct {
	Path  string  `json:"path"`
	Owner *string `json:"owner"`
	Group *string `json:"group"`
	Mode  int     `json:"mode"`
}

func modeDigits(m fs.FileMode) int {
	n, err := strconv.Atoi(strconv.FormatUint(uint64(m.Perm()), 8))
	if err != nil {
		return 0
	}
	return n
}

// inside is a file's path in the sandbox, as the default directory makes it absolute.
func (i *instance) inside(p string) string {
	if dir := i.defaults().Workdir; dir != "" && !path.IsAbs(p) && !strings.HasPrefix(p, "~") {
		return path.Join(dir, p)
	}
	return p
}

// Upload implements core.Instance. The file keeps its mode and belongs to the default user.
func (i *instance) Upload(ctx context.Context, localPath, remotePath string) error {
	if err := i.healthy(); err != nil {
		return err
	}
	busy := false
	err := i.ops().retry(ctx, "uploading a file to sandbox "+i.id, func(ctx context.Context) error {
		err := i.uploadOnce(ctx, localPath, remotePath, busy)
		if busy = !busy && isBusy(err); busy {
			err = i.uploadOnce(ctx, localPath, remotePath, true)
		}
		return err
	})
	return failed(ctx, "upload", i.id, "uploading "+remotePath, err)
}

// isBusy tells whether a daemon could not write into a file because it is a program that runs.
func isBusy(err error) bool {
	var e *apiError
	return errors.As(err, &e) && strings.Contains(e.message, "text file busy")
}

// uploadOnce is one try. replace puts the file in the place of one that can't be written to.
func (i *instance) uploadOnce(ctx context.Context, localPath, remotePath string, replace bool) error {
	f, st, err := core.OpenLocal(localPath)
	if err != nil {
		return core.Errorf(core.LocalKind(err), "upload", "%s: %w", localPath, err)
	}
	defer func() { _ = f.Close() }()
	return i.store(ctx, f, st.Size(), st.Mode(), remotePath, replace)
}

// specFileMode is what a file of a spec may be used for, of which the spec says nothing: on these servers all uploads of
// the other clients can be run.
const specFileMode = 0o755

// writeFile writes one of the spec's files.
func (i *instance) writeFile(ctx context.Context, f core.File) error {
	return i.ops().retry(ctx, "writing a file to sandbox "+i.id, func(ctx context.Context) error {
		return i.store(ctx, strings.NewReader(f.Content), int64(len(f.Content)), specFileMode, f.Path, false)
	})
}

// store sends size bytes as a file. With replace it comes into being elsewhere and then takes its place.
func (i *instance) store(ctx context.Context, r io.Reader, size int64, mode fs.FileMode, remotePath string, replace bool) error {
	target := i.inside(remotePath)
	meta := fileMetadata{Path: target, Mode: modeDigits(mode)}
	if replace || isPattern(target) {
		meta.Path = stopover()
	}
	who, err := readAccount("upload", i.defaults().User)
	if err != nil {
		return err
	}
	if who.name != "" {
		meta.Owner = &who.name
	}
	if owner := who.owner(); owner != "" {
		// The daemon would make the folders that are missing its own.
		if err := i.script(ctx, ownFolders, owner, path.Dir(target)); err != nil {
			return err
		}
	}
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	part := func(name, file, kind string) (io.Writer, error) {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="%s"; filename="%s"`, name, fileName.Replace(file)))
		h.Set("Content-Type", kind)
		return form.CreatePart(h)
	}
	w, err := part("metadata", "metadata", "application/json")
	if err == nil {
		err = json.NewEncoder(w).Encode(meta)
	}
	if err == nil {
		_, err = part("file", path.Base(meta.Path), "application/octet-stream")
	}
	if err != nil {
		return err
	}
	tail := "\r\n--" + form.Boundary() + "--\r\n"
	whole := &exactly{r: r, left: size}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	c := call{
		method: http.MethodPost, contentType: form.FormDataContentType(), timeout: -1,
		stream: io.MultiReader(&head, whole, strings.NewReader(tail)), length: int64(head.Len()) + size + int64(len(tail)),
	}
	// However large the file is, its bytes have to move.
	limit := i.p.cfg.Connection.requestTimeout()
	idle := time.AfterFunc(limit, func() {
		stop(core.Errorf(core.KindTimeout, "", "Timed out uploading: nothing moved for %gs", limit.Seconds()))
	})
	defer idle.Stop()
	whole.moved = func() { idle.Reset(limit) }
	if _, err := i.ask(ctx, c, "/files/upload", nil); err != nil {
		return err
	}
	if who.name == "" && who.owner() != "" {
		err = i.script(ctx, `chown "$1" -- "$2"`, who.owner(), meta.Path)
	}
	if err == nil && meta.Path != target {
		err = i.script(ctx, moveIn, meta.Path, target)
	}
	return err
}

var fileName = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\r", "_", "\n", "_")

// exactly reads as many bytes as were announced, neither more nor fewer.
type exactly struct {
	r     io.Reader
	left  int64
	moved func()
}

// Read implements io.Reader.
func (e *exactly) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if e.moved != nil && n > 0 {
		e.moved()
	}
	if errors.Is(err, io.EOF) && e.left > 0 {
		return n, core.Errorf(core.KindInvalid, "upload", "the file became shorter while it was read: %d bytes are missing", e.left)
	}
	return n, err
}

// Download implements core.Instance. The file appears at its place when all of it has come.
func (i *instance) Download(ctx context.Context, remotePath, localPath string) error {
	if err := i.healthy(); err != nil {
		return err
	}
	localPath, err := core.LocalTarget(localPath)
	if err != nil {
		return core.Errorf(core.KindInvalid, "download", "download to the local file: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(localPath), 0o755); err != nil {
		return core.Errorf(core.KindInvalid, "download", "%w", err)
	}
	err = i.ops().retry(ctx, "downloading a file of sandbox "+i.id, func(ctx context.Context) error {
		target := i.inside(remotePath)
		if !isPattern(target) {
			return i.fetch(ctx, target, localPath)
		}
		link := stopover()
		if err := i.script(ctx, linkTo, target, link); err != nil {
			return err
		}
		err := i.fetch(ctx, link, localPath)
		return errors.Join(err, i.script(context.WithoutCancel(ctx), `rm -f -- "$1"`, link))
	})
	return failed(ctx, "download", i.id, "downloading "+remotePath, err)
}

func (i *instance) fetch(ctx context.Context, remotePath, localPath string) (err error) {
	part, err := os.CreateTemp(filepath.Dir(localPath), ".nemo-gym-download-")
	if err != nil {
		return core.Errorf(core.KindInvalid, "download", "%w", err)
	}
	defer func() {
		_ = part.Close()
		if err != nil {
			_ = os.Remove(part.Name())
		}
	}()
	if err := i.read(ctx, remotePath, part); err != nil {
		return err
	}
	// A temporary file is for its maker only; this one is as any new file.
	mode := fs.FileMode(0o644)
	if st, serr := os.Stat(localPath); serr == nil && st.Mode().IsRegular() {
		mode = st.Mode().Perm()
	}
	if err = part.Chmod(mode); err == nil {
		err = part.Close()
	}
	if err == nil {
		err = os.Rename(part.Name(), localPath)
	}
	if err != nil {
		return core.Errorf(core.KindInvalid, "download", "%w", err)
	}
	return nil
}

// read copies a file of the sandbox to a writer.
func (i *instance) read(ctx context.Context, remotePath string, w io.Writer) error {
	c, err := i.toDaemon(ctx, call{method: http.MethodGet}, "/files/download?path="+url.QueryEscape(remotePath))
	if err != nil {
		return err
	}
	limit := i.p.cfg.Connection.requestTimeout()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(limit, func() {
		cancel(core.Errorf(core.KindTimeout, "", "Timed out downloading: nothing came for %gs", limit.Seconds()))
	})
	defer idle.Stop()
	heard := i.whileSilent(ctx, remotePath, cancel)
	res, err := i.p.rest.send(ctx, c)
	heard()
	if err != nil {
		return i.heard(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		p, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		return newAPIError(res, p)
	}
	if res.ContentLength == math.MaxInt64 {
		return core.Errorf(core.KindInvalid, "download", "%s is a directory", remotePath)
	}
	buf := make([]byte, 64<<10)
	var got int64
	for {
		n, err := res.Body.Read(buf)
		idle.Reset(limit)
		got += int64(n)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return core.Errorf(core.KindInvalid, "download", "%w", werr)
			}
		}
		switch {
		case errors.Is(err, io.EOF) && res.ContentLength <= 0:
			return i.checkSize(ctx, remotePath, got)
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return readFailed(ctx, err)
		}
	}
}

// unlink removes a file; one that is gone is no error.
func (i *instance) unlink(ctx context.Context, remotePath string) error {
	_, err := i.ask(ctx, call{method: http.MethodDelete}, "/files?path="+url.QueryEscape(remotePath), nil)
	return err
}
