package pump

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// chunk is how much the kernel is asked to move at a time.
const chunk = largePipe

// FillPipe moves at most limit bytes of a file into a blocking pipe inside the
// kernel, where the file system can do that, and copies them elsewhere.
func FillPipe(pipe, file *os.File, limit int64) (int64, error) {
	_, _ = unix.FcntlInt(pipe.Fd(), unix.F_SETPIPE_SZ, largePipe)
	var total int64
	for total < limit {
		n, err := unix.Splice(int(file.Fd()), nil, int(pipe.Fd()), nil, int(min(chunk, limit-total)), unix.SPLICE_F_MOVE|unix.SPLICE_F_MORE)
		switch {
		case n > 0:
			total += n
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EINVAL) && total == 0:
			return io.Copy(pipe, io.LimitReader(file, limit))
		case err != nil:
			return total, os.NewSyscallError("splice", err)
		default:
			return total, nil
		}
	}
	return total, nil
}

// DrainPipe moves at most limit bytes of a pipe that NewPipe made into a file, until the pipe's end.
func DrainPipe(file, pipe *os.File, limit int64) (int64, error) {
	rc, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	var total int64
	for total < limit {
		var n int64
		var serr error
		err := rc.Read(func(fd uintptr) bool {
			n, serr = unix.Splice(int(fd), nil, int(file.Fd()), nil, int(min(chunk, limit-total)), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
			return !errors.Is(serr, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return total, err
		case n > 0:
			total += n
		case errors.Is(serr, unix.EINTR):
		case errors.Is(serr, unix.EINVAL) && total == 0:
			return io.Copy(file, io.LimitReader(pipe, limit))
		case serr != nil:
			return total, os.NewSyscallError("splice", serr)
		default:
			return total, nil
		}
	}
	return total, nil
}
