package execd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fileFailure answers a request about a file that went wrong.
func fileFailure(w http.ResponseWriter, what string, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		fail(w, http.StatusNotFound, codeNoFile, "file not found. %v", err)
		return
	}
	fail(w, http.StatusInternalServerError, codeRuntime, "%s%v", what, err)
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("path") == "" {
		missing(w, "path")
		return
	}
	path, err := s.expand(q.Get("path"))
	if err != nil {
		fail(w, http.StatusBadRequest, codeBadBody, "invalid query parameter 'path': %v", err)
		return
	}
	byLine := q.Has("offset") || q.Has("limit")
	if byLine && r.Header.Get("Range") != "" {
		fail(w, http.StatusBadRequest, codeBadBody, "line-based reading (offset/limit) and byte range (Range header) are mutually exclusive")
		return
	}
	// Without O_NONBLOCK the open of a FIFO would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
			pe.Op = "open"
		}
		fileFailure(w, "error opening file. ", err)
		return
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		fileFailure(w, "error reading file. ", err)
		return
	}
	if byLine {
		window(w, q, f)
		return
	}
	h := w.Header()
	h.Set("Content-Disposition", disposition(filepath.Base(path)))
	h.Set("Content-Type", "application/octet-stream")
	switch {
	case st.IsDir():
		h.Del("Content-Disposition")
		fail(w, http.StatusBadRequest, codeBadBody, "path is a directory: %s; download its files one by one", path)
	case !st.Mode().IsRegular(), st.Size() == 0 && strings.HasPrefix(path, "/proc/"):
		// Of unknown size, until it ends or the client has gone.
		defer context.AfterFunc(r.Context(), func() { _ = f.Close() })()
		w.WriteHeader(http.StatusOK)
		_, _ = io.Copy(w, f)
	case r.Header.Get("Range") != "":
		part(w, r, f, st)
	default:
		// Also answers conditional requests.
		http.ServeContent(w, r, "", st.ModTime(), f)
	}
}

// disposition tells a client under what name to save a file.
func disposition(name string) string {
	escaped := url.PathEscape(name)
	if escaped == name {
		return fmt.Sprintf("attachment; filename=%q", name)
	}
	return fmt.Sprintf("attachment; filename=%q; filename*=UTF-8''%s", escaped, escaped)
}

// part sends the first of the ranges that are asked for.
func part(w http.ResponseWriter, r *http.Request, f *os.File, st fs.FileInfo) {
	size := st.Size()
	from, n, err := firstRange(r.Header.Get("Range"), size)
	if err != nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		http.Error(w, err.Error(), http.StatusRequestedRangeNotSatisfiable)
		return
	}
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, from+n-1, size))
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = io.Copy(w, io.NewSectionReader(f, from, n))
}

var (
	errRange   = errors.New("invalid range")
	errOverlap = errors.New("invalid range: failed to overlap")
)

// firstRange reads "bytes=a-b", "bytes=a-" or "bytes=-n".
func firstRange(header string, size int64) (from, n int64, err error) {
	spec, ok := strings.CutPrefix(header, "bytes=")
	if !ok {
		return 0, 0, errRange
	}
	spec, _, _ = strings.Cut(spec, ",")
	a, b, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return 0, 0, errRange
	}
	if a == "" {
		last, err := strconv.ParseUint(b, 10, 63)
		if err != nil {
			return 0, 0, errRange
		}
		n = min(int64(last), size)
		if n == 0 {
			return 0, 0, errOverlap
		}
		return size - n, n, nil
	}
	first, err := strconv.ParseUint(a, 10, 63)
	if err != nil {
		return 0, 0, errRange
	}
	end := uint64(size)
	if b != "" {
		last, err := strconv.ParseUint(b, 10, 63)
		if err != nil || last < first {
			return 0, 0, errRange
		}
		end = min(end, last+1)
	}
	if first >= uint64(size) {
		return 0, 0, errOverlap
	}
	return int64(first), int64(end - first), nil
}

// window sends lines of a file: from the offset on, which counts from 1, as many as limit says.
func window(w http.ResponseWriter, q url.Values, f io.Reader) {
	number := func(name string, least, otherwise int64) (int64, bool) {
		if !q.Has(name) {
			return otherwise, true
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil || n < least {
			fail(w, http.StatusBadRequest, codeBadBody, "invalid query parameter '%s': %s", name, q.Get(name))
			return 0, false
		}
		return n, true
	}
	offset, ok := number("offset", 1, 1)
	if !ok {
		return
	}
	limit, ok := number("limit", 1, -1)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	lines := bufio.NewReaderSize(f, 64<<10)
	for n := int64(1); limit < 0 || n < offset+limit; n++ {
		if !oneLine(w, lines, n >= offset, n > offset) {
			return
		}
	}
}

// oneLine copies or skips a line, which may be longer than any buffer. Lines are
// separated by a line feed, so the last one has none. false: there is no further line.
func oneLine(w io.Writer, r *bufio.Reader, copied, separated bool) bool {
	for first := true; ; first = false {
		p, err := r.ReadSlice('\n')
		if len(p) == 0 && err != nil {
			return false
		}
		whole := err == nil
		if whole {
			p = p[:len(p)-1]
		}
		if copied {
			if first && separated {
				if _, err := io.WriteString(w, "\n"); err != nil {
					return false
				}
			}
			if _, err := w.Write(p); err != nil {
				return false
			}
		}
		switch {
		case whole:
			return true
		case !errors.Is(err, bufio.ErrBufferFull):
			return false
		}
	}
}
