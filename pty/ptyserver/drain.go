package ptyserver

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

const (
	// quiet is how long a stream may be silent after its process has ended before
	// whoever still holds it is left alone.
	quiet = 100 * time.Millisecond
	// tail bounds what a process that outlives the session's own can add by writing on and on.
	tail = time.Second
	// owed is more than the kernel keeps of what a process wrote before its end.
	owed = 128 << 10
)

// copyOutput hands a stream on until its end. When the process ends, which
// ended tells, everything that it wrote is still read: the end of a terminal is
// only a proof when nothing is left to read after the process has gone.
func copyOutput(f *os.File, ended <-chan struct{}, hand func([]byte)) {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ended:
			// Wakes a read under way.
			_ = f.SetReadDeadline(time.Unix(1, 0))
		case <-over:
		}
	}()
	buf := make([]byte, proto.MaxChunk)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			hand(buf[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return // EIO of a terminal, or the end of a pipe: nobody holds the other end
		}
	}
	drain(f, buf, hand)
}

// drain reads the rest of a stream whose process has ended.
func drain(f *os.File, buf []byte, hand func([]byte)) {
	for left := owed; left > 0; {
		n, err := tryRead(f, buf)
		if n > 0 {
			hand(buf[:n])
			left -= n
		}
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil || n == 0 {
			return
		}
	}
	// Nothing is left of the process itself. Parts of a pipeline may have some words yet.
	for stop := time.Now().Add(tail); time.Now().Before(stop); {
		if f.SetReadDeadline(time.Now().Add(quiet)) != nil {
			return
		}
		n, err := f.Read(buf)
		if n > 0 {
			hand(buf[:n])
		}
		if err != nil {
			return
		}
	}
}

// tryRead reads what is there without waiting; EAGAIN means that there is
// nothing, which the kernel says only after it has looked into all its buffers.
func tryRead(f *os.File, buf []byte) (n int, err error) {
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return 0, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := conn.Read(func(fd uintptr) bool {
		for {
			n, err = syscall.Read(int(fd), buf)
			if !errors.Is(err, syscall.EINTR) {
				return true
			}
		}
	})
	return max(n, 0), errors.Join(cerr, err)
}
