package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// procID names one process for good: numbers are used again, but not with the
// same start time within one boot.
type procID struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // in clock ticks since boot
	Realm string `json:"realm"`
}

// realm names the boot and the process namespace, outside of which a process's
// number means another process or none.
var realm = sync.OnceValues(func() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", fmt.Errorf("read the process namespace: %w", err)
	}
	return strings.TrimSpace(string(boot)) + " " + ns, nil
})

// identify describes a living process.
func identify(pid int) (procID, error) {
	st, err := readStat(pid)
	if err != nil {
		return procID{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	here, err := realm()
	if err != nil {
		return procID{}, err
	}
	return procID{PID: pid, Start: st.start, Realm: here}, nil
}

// procStat is the part of /proc/PID/stat that matters here.
type procStat struct {
	state  byte
	parent int
	start  string
}

func readStat(pid int) (procStat, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}
	// The name in brackets may hold anything, also a bracket; the fields start behind the last one.
	s := string(raw)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(f) < 20 {
		return procStat{}, fmt.Errorf("unexpected contents of /proc/%d/stat", pid)
	}
	parent, err := strconv.Atoi(f[1])
	return procStat{state: f[0][0], parent: parent, start: f[19]}, err
}

// open gets a handle that stays with this very process; nil when it has ended.
func (id procID) open() *os.File {
	if id.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(id.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil
	}
	// Looked at after the handle was made, so the number can't have changed hands.
	if now, err := identify(id.PID); err != nil || now != id {
		_ = unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "process")
}

// alive tells whether the process still runs; one that waits to be reaped does not.
func (id procID) alive() bool {
	h := id.open()
	if h == nil {
		return false
	}
	defer h.Close()
	st, err := readStat(id.PID)
	return err == nil && st.state != 'Z' && st.state != 'X'
}

// signal sends a signal; a process that has ended is success.
func (id procID) signal(sig unix.Signal) error {
	h := id.open()
	if h == nil {
		return nil
	}
	defer h.Close()
	return signalHandle(h, sig)
}

func signalHandle(h *os.File, sig unix.Signal) error {
	c, err := h.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = c.Control(func(fd uintptr) { sendErr = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	if err = errors.Join(err, sendErr); errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// killAndWait kills the process and waits for its end, which for the first
// process of a namespace is the end of all in it. It need not be our child.
func (id procID) killAndWait(ctx context.Context) error {
	h := id.open()
	if h == nil {
		return nil
	}
	defer h.Close()
	if err := signalHandle(h, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = h.SetReadDeadline(time.Now()) })
	defer stop()
	c, err := h.SyscallConn()
	if err != nil {
		return err
	}
	err = c.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
	if err != nil {
		return fmt.Errorf("wait for the end of process %d: %w", id.PID, err)
	}
	return nil
}

// killTree ends a process that is no namespace's first and everything below it.
// Stopped, it can start nothing new, and its orphans still come to it where it is
// their subreaper, so none gets away.
func (id procID) killTree(ctx context.Context) error {
	h := id.open()
	if h == nil {
		return nil
	}
	defer h.Close()
	if err := signalHandle(h, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop process %d: %w", id.PID, err)
	}
	// The signal may find it in the middle of making a process.
	for ctx.Err() == nil && !standsStill(id.PID) {
		time.Sleep(time.Millisecond)
	}
	for ctx.Err() == nil {
		left := descendants(id.PID)
		if len(left) == 0 {
			break
		}
		for _, d := range left {
			// One that can't be killed shows again in the next pass, until ctx ends.
			_ = d.killAndWait(ctx)
		}
	}
	return errors.Join(ctx.Err(), id.killAndWait(ctx))
}

// standsStill tells whether a process is stopped or has ended.
func standsStill(pid int) bool {
	st, err := readStat(pid)
	return err != nil || strings.IndexByte("TtZX", st.state) >= 0
}

// descendants lists the living processes below one.
func descendants(root int) []procID {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	dead := map[int]bool{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := readStat(pid); err == nil {
			children[st.parent] = append(children[st.parent], pid)
			dead[pid] = st.state == 'Z' || st.state == 'X'
		}
	}
	var found []procID
	todo := children[root]
	for len(todo) > 0 {
		pid := todo[0]
		todo = append(todo[1:], children[pid]...)
		if !dead[pid] {
			if id, err := identify(pid); err == nil {
				found = append(found, id)
			}
		}
	}
	return found
}
