package process

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Slacks of timers in nanoseconds: by how much later than asked for the kernel may wake a thread.
const (
	usualSlack = 50_000    // what everything has unless somebody chose otherwise
	calmSlack  = 1_000_001 // odd, so that nobody else is taken for a program that Calm started
)

// Calm lets the Go runtime's monitor look after the other threads less often: it sleeps for 20 µs and the slack, again
// and again, for as long as anything runs or a program is being forked, and in a virtual machine each of these timers
// costs more than dozens of system calls. A monitor that is late takes the processor away later from a thread that
// blocks, which hardly matters where threads only wait in the poller.
//
// A thread has the slack of the one that started it, and the monitor is started before anything of a program runs. So
// this executes the program again, once, and returns only in that second life, or where it can't be done. What is
// forked by a Reaper has the usual slack.
func Calm() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if slack() != usualSlack {
		return // this is the second life, or somebody chose
	}
	self, err := os.Executable()
	if err != nil || setSlack(calmSlack) != nil {
		return
	}
	_ = syscall.Exec(self, os.Args, os.Environ())
	_ = setSlack(usualSlack)
}

// lendSlack gives this thread the slack that what it forks shall have. It may keep it.
func lendSlack() {
	if slack() == calmSlack {
		_ = setSlack(usualSlack)
	}
}

// slack is that of this thread, 0 where it isn't known.
func slack() int {
	n, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err != nil {
		return 0
	}
	return n
}

func setSlack(ns uintptr) error { return unix.Prctl(unix.PR_SET_TIMERSLACK, ns, 0, 0, 0) }
