package core

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Owner names one process for good, also for those who look at what it left after its end: numbers are used again, but
// not with the same start time within one boot.
type Owner struct {
	Run   string `json:"run"`   // the run that the process belongs to; one harness may have several processes
	Host  string `json:"host"`  // name of the machine or container
	Boot  string `json:"boot"`  // the kernel's boot id
	Space string `json:"space"` // the process namespace, outside of which the number means another process or none
	PID   int    `json:"pid"`
	Start string `json:"start"` // in clock ticks since boot
}

// OwnerState tells whether the process that made something lives.
type OwnerState string

// The states. Unknown means that it can't be seen from here: it runs, or ran, on another machine or in another container.
const (
	OwnerAlive   OwnerState = "alive"
	OwnerDead    OwnerState = "dead"
	OwnerUnknown OwnerState = "unknown"
)

// RunEnv names the environment variable that gives a run its name.
const RunEnv = "NEMO_GYM_RUN_ID"

// Self is this process. The run is what the environment says at the first call, else twelve random hexadecimal digits.
var Self = sync.OnceValue(func() Owner {
	o := Owner{Run: os.Getenv(RunEnv), PID: os.Getpid()}
	if o.Run == "" {
		var b [6]byte
		_, _ = rand.Read(b[:]) // it never fails
		o.Run = hex.EncodeToString(b[:])
	}
	// What can't be found out stays empty: then nobody will take this process for dead.
	o.Host, _ = os.Hostname()
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		o.Boot = strings.TrimSpace(string(boot))
	}
	o.Space, _ = os.Readlink("/proc/self/ns/pid")
	if p, err := readProcess(o.PID); err == nil {
		o.Start = p.start
	}
	return o
})

// State looks whether the process lives. Where that can't be seen for sure it is OwnerUnknown.
func (o Owner) State() OwnerState { return o.stateSeenFrom(Self()) }

// Here tells whether the process ran where this one can see it: in this boot and process namespace.
func (o Owner) Here() bool {
	me := Self()
	return o.Boot == me.Boot && o.Space == me.Space && me.Boot != "" && me.Space != ""
}

func (o Owner) stateSeenFrom(me Owner) OwnerState {
	switch {
	case o.PID <= 0 || o.Boot == "" || o.Start == "":
		return OwnerUnknown
	case o.Boot != me.Boot && o.Host == me.Host && o.Host != "" && o.Host != "localhost":
		return OwnerDead // this machine was started anew since
	case o.Boot != me.Boot || o.Space != me.Space || me.Space == "":
		return OwnerUnknown
	}
	p, err := readProcess(o.PID)
	switch {
	case err == nil && p.start == o.Start && !p.ended:
		return OwnerAlive
	case err == nil:
		return OwnerDead
	case errors.Is(err, fs.ErrNotExist) && errors.Is(syscall.Kill(o.PID, 0), syscall.ESRCH):
		return OwnerDead // asked for a second time, since other users' processes may be hidden from /proc
	}
	return OwnerUnknown
}

// process is the part of /proc/PID/stat that matters here.
type process struct {
	start string
	ended bool // waits for its parent to take note of its end
}

func readProcess(pid int) (process, error) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return process{}, err
	}
	// The second field is the program's name in brackets, with anything in it; the others start behind the last one.
	s := string(raw)
	f := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	const cut = 3 // the place in the whole line of the first that is left
	const threads, start = 20 - cut, 22 - cut
	if len(f) <= start {
		return process{}, fmt.Errorf("unexpected contents of /proc/%d/stat", pid)
	}
	// The first thread may end before the others: then the process looks like a dead one, but has more than one thread.
	n, err := strconv.Atoi(f[threads])
	return process{start: f[start], ended: (f[0] == "Z" || f[0] == "X") && n <= 1}, err
}
