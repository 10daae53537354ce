package ptyserver

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// streams are this side's ends of a process's standard streams. All of them can
// be polled, so that waiting takes no thread and closing ends a wait.
type streams struct {
	in     *os.File
	out    *os.File
	err    *os.File // nil with a terminal
	master *os.File // nil without one; also in and out
	child  [3]*os.File
}

// openTerminal makes a terminal of a size.
func openTerminal(rows, cols int) (*streams, error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a terminal: /dev/ptmx: %w", err)
	}
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	fail := func(err error) (*streams, error) {
		_ = master.Close()
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return fail(err)
	}
	// By way of the master, since what is at /dev/pts is the sandbox's to say.
	peer, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		return fail(err)
	}
	name := "/dev/pts/" + strconv.FormatUint(uint64(peer), 10)
	slave, err := openPeer(fd, name)
	if err != nil {
		return fail(err)
	}
	tty := os.NewFile(uintptr(slave), name)
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, winsize(rows, cols)); err != nil {
		_ = tty.Close()
		return fail(err)
	}
	return &streams{in: master, out: master, master: master, child: [3]*os.File{tty, tty, tty}}, nil
}

// openPipes makes three pipes.
func openPipes() (*streams, error) {
	s := &streams{}
	for i, mine := range []**os.File{&s.in, &s.out, &s.err} {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			s.close()
			s.closeChild()
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		own, other := p[0], p[1]
		if i == 0 {
			own, other = p[1], p[0]
		}
		if err := unix.SetNonblock(own, true); err != nil {
			_ = unix.Close(own)
			_ = unix.Close(other)
			s.close()
			s.closeChild()
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		*mine = os.NewFile(uintptr(own), "pipe")
		s.child[i] = os.NewFile(uintptr(other), "pipe")
	}
	return s, nil
}

func winsize(rows, cols int) *unix.Winsize {
	return &unix.Winsize{Row: uint16(rows), Col: uint16(cols)}
}

// resize changes the terminal's size; its foreground processes are told by the kernel.
func (s *streams) resize(rows, cols int) error {
	if s.master == nil || !proto.ValidSize(rows, cols) {
		return nil
	}
	conn, err := s.master.SyscallConn()
	if err != nil {
		return err
	}
	cerr := conn.Control(func(fd uintptr) {
		err = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, winsize(rows, cols))
	})
	return errors.Join(cerr, err)
}

// closeChild closes the process's ends here.
func (s *streams) closeChild() {
	for i, f := range s.child {
		if f != nil && (i == 0 || f != s.child[0]) {
			_ = f.Close()
		}
	}
	s.child = [3]*os.File{}
}

// close closes this side's ends and ends what waits on them.
func (s *streams) close() {
	if s.in != nil {
		_ = s.in.Close()
	}
	if s.out != nil && s.out != s.in {
		_ = s.out.Close()
	}
	if s.err != nil {
		_ = s.err.Close()
	}
}

// openPeer opens the other end of a terminal.
func openPeer(master int, name string) (int, error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
	switch errno {
	case 0:
		return int(fd), nil
	case unix.ENOTTY, unix.EINVAL, unix.ENOSYS:
		// Kernels before 4.13, and some that only look like Linux.
		return unix.Open(name, flags, 0)
	default:
		return -1, errno
	}
}
