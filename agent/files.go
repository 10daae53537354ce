package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/pump"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Upload copies a local regular file (a link's target for a link) into the
// sandbox with its mode. The target appears whole or not at all; parents are
// made; it belongs to the sandbox's default user.
func (c *Client) Upload(ctx context.Context, localPath, remotePath string) error {
	f, st, err := core.OpenLocal(localPath)
	if err != nil {
		return core.Errorf(core.LocalKind(err), "upload", "upload %s: %w", localPath, err)
	}
	defer f.Close()
	req := wire.Req{Op: wire.OpUpload, File: &wire.File{Path: remotePath, Mode: uint32(st.Mode().Perm()), Size: st.Size()}}
	var fds []int
	if c.o.PassFDs {
		fds = []int{int(f.Fd())}
	}
	var bytes io.Reader
	if !c.o.PassFDs {
		bytes = f
	}
	return c.send(ctx, req, bytes, fds...)
}

// WriteFiles writes several small files with mode 0644 in one operation, in
// their order; see Upload. The first that fails ends it, and those before it are there.
func (c *Client) WriteFiles(ctx context.Context, files []core.File) error {
	if len(files) == 0 {
		return nil
	}
	req := wire.Req{Op: wire.OpWrite}
	// Joined, so that many small files fill few frames.
	var contents strings.Builder
	for _, f := range files {
		req.Files = append(req.Files, wire.File{Path: f.Path, Mode: 0o644, Size: int64(len(f.Content))})
		contents.WriteString(f.Content)
	}
	return c.send(ctx, req, strings.NewReader(contents.String()))
}

// send does an operation that carries bytes to the sandbox: in frames, or, when bytes is nil, by the descriptors.
func (c *Client) send(ctx context.Context, req wire.Req, bytes io.Reader, fds ...int) error {
	ctx, heard, done := c.unlessSilent(ctx)
	defer done()
	s, err := c.begin(ctx, req, fds...)
	if err != nil {
		return c.failed(ctx, "upload", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Conn.Close() })
	defer stop()
	io := &streams{stdin: bytes, frames: make(chan struct{}, wire.StdinWindow), ended: make(chan struct{})}
	io.sent(s)
	res, err := c.result(s, func(t wire.Type, p []byte) error {
		heard()
		if t != wire.StdinTaken && t != wire.Accepted {
			return fmt.Errorf("the agent sent a frame of type %d within an upload", t)
		}
		return io.frame(t, p)
	})
	io.close()
	if err != nil {
		c.pool.drop(s)
		return c.failed(ctx, "upload", err)
	}
	c.release(s, stop)
	return resError("upload", res)
}

// Download copies a regular file of the sandbox to a local path, which appears
// whole or not at all; its parents are made. What is there before stays until then.
func (c *Client) Download(ctx context.Context, remotePath, localPath string) (err error) {
	target, err := core.LocalTarget(localPath)
	if err != nil {
		return core.Errorf(core.KindInvalid, "download", "download to %s: %w", localPath, err)
	}
	var r *os.File
	var fds []int
	if c.o.PassFDs {
		var w int
		if r, w, err = pump.NewPipe(); err != nil {
			return core.Errorf(core.KindInternal, "download", "make a pipe: %w", err)
		}
		defer r.Close()
		fds = []int{w}
	}
	ctx, heard, done := c.unlessSilent(ctx)
	defer done()
	s, err := c.begin(ctx, wire.Req{Op: wire.OpDownload, File: &wire.File{Path: remotePath}}, fds...)
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	if err != nil {
		return c.failed(ctx, "download", err)
	}
	stop := context.AfterFunc(ctx, func() {
		_ = s.Conn.Close()
		if r != nil {
			_ = r.Close()
		}
	})
	defer stop()
	d := &arrival{path: target, pipe: r}
	defer d.discard()
	res, err := c.result(s, func(t wire.Type, p []byte) error {
		heard()
		return d.frame(t, p)
	})
	switch {
	case err == nil && res.Error == "":
		c.release(s, stop)
		if err := d.publish(res.Size); err != nil {
			return core.Errorf(core.LocalKind(err), "download", "download %s to %s: %w", remotePath, localPath, err)
		}
		return nil
	case err == nil:
		c.release(s, stop)
		return resError("download", res)
	default:
		c.pool.drop(s)
		if d.err != nil {
			return core.Errorf(core.LocalKind(d.err), "download", "download %s to %s: %w", remotePath, localPath, d.err)
		}
		return c.failed(ctx, "download", err)
	}
}

// release puts a stream back unless the end of the context has begun to close it.
func (c *Client) release(s *wire.Stream, stop func() bool) {
	if stop() {
		c.pool.put(s)
	} else {
		c.pool.drop(s)
	}
}

// arrival is a download under way: a temporary file beside its target.
type arrival struct {
	path string
	pipe *os.File // bytes come through it, else in frames
	tmp  *os.File
	mode fs.FileMode
	size int64
	got  int64
	err  error // of this host's side
}

// frame takes one frame of the agent; an error of this side is kept in err.
func (d *arrival) frame(t wire.Type, p []byte) error {
	switch {
	case t == wire.Meta && d.tmp == nil:
		var m wire.FileMeta
		if err := json.Unmarshal(p, &m); err != nil || m.Size < 0 {
			return fmt.Errorf("the agent describes a file in a way that makes no sense: %w", err)
		}
		d.size, d.mode = m.Size, fs.FileMode(m.Mode)&fs.ModePerm
		d.err = d.begin()
		if d.err == nil && d.pipe != nil {
			// Bounded by what was announced: a sandbox must not fill this host's disk.
			d.got, d.err = pump.DrainPipe(d.tmp, d.pipe, d.size)
			_ = d.pipe.Close() // ends an agent that has more to send
		}
		return d.err
	case t == wire.Out && d.tmp != nil && d.pipe == nil:
		if d.got += int64(len(p)); d.got > d.size {
			return errors.New("the file grew while it was read")
		}
		_, d.err = d.tmp.Write(p)
		return d.err
	case t == wire.Accepted:
		return nil
	default:
		return fmt.Errorf("the agent sent a frame of type %d within a download", t)
	}
}

func (d *arrival) begin() error {
	if err := os.MkdirAll(filepath.Dir(d.path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(d.path), ".ngs-download-")
	d.tmp = f
	return err
}

// publish moves the file into its place.
func (d *arrival) publish(size int64) error {
	switch {
	case d.tmp == nil:
		return errors.New("the agent sent no file")
	case d.got != d.size || size != d.size:
		return fmt.Errorf("%d of %d bytes arrived: the file changed while it was read", d.got, d.size)
	}
	if err := d.tmp.Chmod(d.mode); err != nil {
		return err
	}
	name := d.tmp.Name()
	if err := d.tmp.Close(); err != nil {
		return err
	}
	if err := os.Rename(name, d.path); err != nil {
		return err
	}
	d.tmp = nil
	return nil
}

// discard removes what has arrived of a failed download.
func (d *arrival) discard() {
	if d.tmp != nil {
		_ = d.tmp.Close()
		_ = os.Remove(d.tmp.Name())
	}
}
