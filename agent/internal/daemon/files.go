package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/files"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/pump"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
)

// upload writes one file.
func (s *server) upload(o *operation) wire.Res {
	f := o.req.File
	if f == nil {
		return wire.Res{Kind: wire.KindInvalid, Error: "the upload names no target"}
	}
	var src io.Reader = &frameReader{o: o}
	if len(o.fds) > 0 {
		passed := os.NewFile(uintptr(o.fds[0]), "upload")
		o.fds = o.fds[1:]
		defer passed.Close()
		src = passed
	}
	owner, res := s.owner()
	if res.Error != "" {
		return res
	}
	return s.place(*f, owner, src)
}

// write writes several files, whose bytes follow one another. One that is not there yet is
// written in place: it is half as dear, and a sandbox that is just starting has no readers.
func (s *server) write(o *operation) wire.Res {
	owner, res := s.owner()
	if res.Error != "" {
		return res
	}
	src := &frameReader{o: o}
	var total int64
	for _, f := range o.req.Files {
		content := io.LimitReader(src, f.Size)
		res, done := s.create(f, owner, content)
		if !done {
			res = s.place(f, owner, content)
		}
		if res.Error != "" {
			return res
		}
		total += res.Size
	}
	return wire.Res{Size: total}
}

// create writes a file under a name that is free. It is not done, and no byte is taken,
// when the name is taken or can't be made without a closer look.
func (s *server) create(f wire.File, owner *ids, src io.Reader) (res wire.Res, done bool) {
	if f.Path == "" {
		return wire.Res{}, false
	}
	target := s.abs(f.Path)
	mode := fs.FileMode(f.Mode) & fs.ModePerm
	dst, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, mode)
	if err != nil {
		return wire.Res{}, false
	}
	n, err := fill(dst, src, f, owner)
	if err != nil {
		_ = os.Remove(target)
		return fileError("upload to", f.Path, err), true
	}
	return wire.Res{Size: n}, true
}

// place writes one file so that it is there whole or not at all: a temporary
// file beside the target takes its place at the end.
func (s *server) place(f wire.File, owner *ids, src io.Reader) wire.Res {
	if f.Path == "" {
		return wire.Res{Kind: wire.KindInvalid, Error: "the target's name is empty"}
	}
	target, err := files.FollowLinks(s.abs(f.Path))
	if err != nil {
		return fileError("upload to", f.Path, err)
	}
	if st, err := os.Stat(target); err == nil && st.IsDir() {
		return wire.Res{Kind: wire.KindIO, Error: fmt.Sprintf("upload to %s: it is a directory; name the file in it", f.Path)}
	} else if err == nil && !st.Mode().IsRegular() { // nobody means to replace /dev/null
		return wire.Res{Kind: wire.KindIO, Error: fmt.Sprintf("upload to %s: it is not a regular file (%s)", f.Path, st.Mode().Type())}
	}
	if err := mkdirs(filepath.Dir(target), owner); err != nil {
		return fileError("upload to", f.Path, err)
	}
	dst, tmp, err := files.Beside(target)
	if err != nil {
		return fileError("upload to", f.Path, err)
	}
	n, err := fill(dst, src, f, owner)
	if err == nil {
		err = os.Rename(tmp, target)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fileError("upload to", f.Path, err)
	}
	return wire.Res{Size: n}
}

// fill writes an upload's bytes to its new file, gives that its owner and mode, and closes it.
func fill(dst *os.File, src io.Reader, f wire.File, owner *ids) (int64, error) {
	defer dst.Close()
	n, err := io.Copy(dst, src)
	if err != nil {
		return n, err
	}
	if n != f.Size {
		return n, fmt.Errorf("%d of %d bytes arrived", n, f.Size)
	}
	if owner != nil {
		if err := dst.Chown(int(owner.uid), int(owner.gid)); err != nil {
			return n, err
		}
	}
	mode := fs.FileMode(f.Mode) & fs.ModePerm
	st, err := dst.Stat()
	if err == nil && st.Mode().Perm() != mode { // to look is cheaper than to set
		err = dst.Chmod(mode)
	}
	if err != nil {
		return n, err
	}
	return n, dst.Close() // where a full disk or a network file system tells it last
}

// frameReader reads a client's bytes from its frames; an empty frame is their end.
type frameReader struct {
	o    *operation
	rest []byte
	end  bool
}

func (r *frameReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.end {
			return 0, io.EOF
		}
		select {
		case r.rest = <-r.o.stdin.chunks:
			if len(r.rest) == 0 {
				r.end = true
				continue
			}
			if err := r.o.st.WriteFrame(wire.StdinTaken, nil); err != nil {
				return 0, err
			}
		case <-r.o.ctx.Done():
			return 0, errCancelled
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// download sends one regular file.
func (s *server) download(o *operation) wire.Res {
	f := o.req.File
	if f == nil || f.Path == "" {
		return wire.Res{Kind: wire.KindInvalid, Error: "the download names no file"}
	}
	// Without O_NONBLOCK the open of a FIFO would wait for a writer.
	src, err := os.OpenFile(s.abs(f.Path), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fileError("download", f.Path, err)
	}
	defer src.Close()
	st, err := src.Stat()
	switch {
	case err != nil:
		return fileError("download", f.Path, err)
	case st.IsDir():
		return wire.Res{Kind: wire.KindIO, Error: fmt.Sprintf("download %s: it is a directory; download its files one by one", f.Path)}
	case !st.Mode().IsRegular():
		return wire.Res{Kind: wire.KindIO, Error: fmt.Sprintf("download %s: it is not a regular file (%s)", f.Path, st.Mode().Type())}
	}
	size := st.Size()
	var made []byte // by the kernel, in the moment in which it was read
	if size == 0 {
		if made, err = readUnsized(src); err != nil {
			return fileError("download", f.Path, err)
		}
		size = int64(len(made))
	}
	if err := o.st.WriteJSON(wire.Meta, wire.FileMeta{Size: size, Mode: uint32(st.Mode().Perm())}); err != nil {
		return fileError("download", f.Path, err)
	}
	var n int64
	switch {
	case len(o.fds) > 0:
		dst := os.NewFile(uintptr(o.fds[0]), "download")
		o.fds = o.fds[1:]
		if len(made) > 0 {
			n, err = io.Copy(dst, bytes.NewReader(made))
		} else {
			n, err = pump.FillPipe(dst, src, size)
		}
		_ = dst.Close()
	case len(made) > 0:
		n, err = io.Copy(frameWriter{o.st}, bytes.NewReader(made))
	default:
		n, err = io.Copy(frameWriter{o.st}, io.LimitReader(src, size))
	}
	if err != nil {
		return fileError("download", f.Path, err)
	}
	return wire.Res{Size: n}
}

const (
	maxUnsized  = 4 << 20
	unsizedWait = 2 * time.Second
)

// readUnsized reads a file that says it is empty. Those of /proc do and are not; some of them never end.
func readUnsized(src *os.File) ([]byte, error) {
	_ = src.SetReadDeadline(time.Now().Add(unsizedWait)) // where the kernel can tell when there is more to read
	made, err := io.ReadAll(io.LimitReader(src, maxUnsized+1))
	switch {
	case err != nil:
		return nil, err
	case len(made) > maxUnsized:
		return nil, errors.New("it does not tell its size and is too large to be held; copy it inside the sandbox first")
	}
	return made, nil
}

// frameWriter sends bytes in frames.
type frameWriter struct{ st *wire.Stream }

func (w frameWriter) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		m := min(len(p), wire.MaxData)
		if err := w.st.WriteFrame(wire.Out, p[:m]); err != nil {
			return n, err
		}
		n += m
		p = p[m:]
	}
	return n, nil
}

// ids own what an upload makes.
type ids struct{ uid, gid uint32 }

// owner is the default user of commands; nil means the agent's own.
func (s *server) owner() (*ids, wire.Res) {
	s.mu.Lock()
	name := s.defaults.User
	s.mu.Unlock()
	who, err := s.users.Resolve(name)
	if err != nil {
		return nil, wire.Res{Kind: wire.KindUser, Error: err.Error()}
	}
	if who.Cred == nil {
		return nil, wire.Res{}
	}
	return &ids{who.Cred.Uid, who.Cred.Gid}, wire.Res{}
}

func (s *server) abs(p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	s.mu.Lock()
	base := s.defaults.Workdir
	s.mu.Unlock()
	if base == "" {
		base = "/"
	}
	return path.Join(base, p)
}

// mkdirs makes a directory and its parents; those it made belong to owner.
func mkdirs(dir string, owner *ids) error {
	st, err := os.Stat(dir)
	switch {
	case err == nil && st.IsDir():
		return nil
	case err == nil:
		return &fs.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := mkdirs(filepath.Dir(dir), owner); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if owner == nil {
		return nil
	}
	return os.Lchown(dir, int(owner.uid), int(owner.gid))
}

func fileError(what, name string, err error) wire.Res {
	kind := wire.KindIO
	if errors.Is(err, fs.ErrNotExist) {
		kind = wire.KindNotFound
	}
	msg := fmt.Sprintf("%s %s: %v", what, name, process.Reason(err))
	if errors.Is(err, unix.ENOSPC) {
		msg += "; a file that was there before is unchanged"
	}
	return wire.Res{Kind: kind, Error: msg}
}
