// Package pump reads a command's output pipe to its right end: all that the
// command wrote, but not longer than that for a background process that keeps the pipe open.
package pump

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// idle is how long a pipe may be silent after its command has ended before
	// whoever still holds it is left alone. Process substitutions and pipelines end within it.
	idle = 100 * time.Millisecond
	// tail bounds what a process that outlives its command can add by writing on and on.
	tail = time.Second
	// bufSize is one read; a pipe holds 64 KiB unless it is enlarged.
	bufSize = 64 << 10
	// largePipe is the size that a pipe gets once it has carried as much: fewer
	// wake-ups for large outputs, no memory taken from the user's budget by small ones.
	largePipe = 1 << 20
)

var buffers = sync.Pool{New: func() any { b := make([]byte, bufSize); return &b }}

// Pump moves a pipe's bytes to a function.
type Pump struct {
	f     *os.File
	ended atomic.Bool
	done  chan struct{}
}

// NewPipe makes a pipe of which this process reads: r can be polled and waits
// without a thread; w is a plain blocking descriptor for a command.
func NewPipe() (r *os.File, w int, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(p[0], true); err != nil {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(p[0]), "pipe"), p[1], nil
}

// NewStdinPipe makes a pipe to which this process writes; r is for a command.
func NewStdinPipe() (r int, w *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, os.NewSyscallError("pipe2", err)
	}
	if err := unix.SetNonblock(p[1], true); err != nil {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
		return -1, nil, os.NewSyscallError("fcntl", err)
	}
	return p[0], os.NewFile(uintptr(p[1]), "pipe"), nil
}

// Start reads f, which it closes at the end, in a goroutine of its own and gives the bytes to
// write. When write fails the reading ends, and writers of the pipe get EPIPE.
func Start(f *os.File, write func([]byte) error) *Pump {
	return StartLeaving(f, write, func(f *os.File) { _ = f.Close() })
}

// StartLeaving is as Start, but gives a pipe that others than the command still
// hold, or that write did not want to hear more of, to left instead of closing it.
func StartLeaving(f *os.File, write func([]byte) error, left func(*os.File)) *Pump {
	p := &Pump{f: f, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if p.run(write) {
			_ = f.Close()
			return
		}
		_ = f.SetReadDeadline(time.Time{})
		left(f)
	}()
	return p
}

// Ended tells the pump that the command is over: what is in the pipe is still
// read, then it ends at the latest after a short silence.
func (p *Pump) Ended() {
	p.ended.Store(true)
	// Wakes a read under way, which then sees the flag.
	_ = p.f.SetReadDeadline(time.Now())
}

// Abort ends the reading now.
func (p *Pump) Abort() { _ = p.f.Close() }

// Done is closed when the last byte has been written on and the pipe is closed.
func (p *Pump) Done() <-chan struct{} { return p.done }

// run tells whether the pipe itself has ended.
func (p *Pump) run(write func([]byte) error) (over bool) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	var (
		total   int
		noted   bool      // the end of the command has been seen here
		owed    int       // bytes that the command certainly wrote and that are still unread
		stopAt  time.Time // when a process that outlives the command has had its time
		silence time.Time // a read that found nothing until then found silence
		enlarge = largePipe
	)
	for {
		if p.ended.Load() {
			now := time.Now()
			if !noted {
				noted = true
				owed = unread(p.f)
			}
			switch {
			case owed > 0:
			case stopAt.IsZero():
				stopAt = now.Add(tail)
			case now.After(stopAt):
				return false
			}
			silence = now.Add(idle)
			if p.f.SetReadDeadline(silence) != nil {
				return true
			}
		}
		n, err := p.f.Read(*buf)
		if n > 0 {
			owed -= n
			if total += n; enlarge > 0 && total >= enlarge {
				enlarge = 0
				_, _ = control(p.f, unix.F_SETPIPE_SZ, largePipe)
			}
			if write((*buf)[:n]) != nil {
				return false
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			// The deadline may still be the one by which Ended woke this loop.
			if noted && !time.Now().Before(silence) {
				return false
			}
		default: // the end, or a pipe that was closed here
			return true
		}
	}
}

// unread is how many bytes wait in the pipe.
func unread(f *os.File) int {
	n := 0
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return n
}

func control(f *os.File, cmd, arg int) (n int, err error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if cerr := rc.Control(func(fd uintptr) { n, err = unix.FcntlInt(fd, cmd, arg) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}
