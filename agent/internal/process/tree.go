package process

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ExecTag is the variable by which processes of one command are known, also
// after they left its session and lost their parents.
const ExecTag = "NGS_EXEC_ID"

// KillTimeout bounds the ending of a tree; only a process stuck in the kernel outlives it.
const KillTimeout = 5 * time.Second

// Tree is what one command started.
type Tree struct {
	Leader int    // pid and session of the command
	Tag    []byte // "NGS_EXEC_ID=..." in its environment
	Alone  bool   // only the leader counts: what it started is to be left alone
	Hangup bool   // the leader may be an interactive shell, which ignores TERM but not the loss of its terminal

	seen map[int]uint64 // by pid, when it began: what belonged to the tree while all its parents lived
}

// Info is one line of the process table.
type Info struct {
	PID, PPID, SID int
	State          byte
	start          uint64
}

// End asks the tree to end, gives it the grace, then kills what is left,
// again and again until a look finds nothing. It reports whether that was reached in time.
func (t *Tree) End(grace time.Duration) bool {
	deadline := time.Now().Add(grace + KillTimeout)
	members := t.members(nil)
	t.seen = map[int]uint64{}
	for _, p := range members {
		t.seen[p.PID] = p.start
	}
	if t.Hangup {
		signalAll(members, unix.SIGHUP)
	}
	signalAll(members, unix.SIGTERM)
	signalAll(members, unix.SIGCONT) // a stopped process could not act on the TERM
	for step := time.Millisecond; len(members) > 0 && grace > 0; step = min(2*step, 20*time.Millisecond) {
		time.Sleep(min(step, grace))
		grace -= step
		members = t.members(nil)
	}
	for time.Now().Before(deadline) {
		// Stop first, so that nothing forks away between the look and the kill.
		frozen := map[int]uint64{}
		for {
			fresh := 0
			for _, p := range t.members(frozen) {
				if frozen[p.PID] != p.start {
					frozen[p.PID] = p.start
					_ = unix.Kill(p.PID, unix.SIGSTOP)
					fresh++
				}
			}
			if fresh == 0 {
				break
			}
		}
		if len(frozen) == 0 {
			return true
		}
		for pid := range frozen {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for step := 200 * time.Microsecond; time.Now().Before(deadline); step = min(2*step, 10*time.Millisecond) {
			if len(t.members(frozen)) == 0 {
				return true
			}
			time.Sleep(step)
			if step > 5*time.Millisecond {
				break // something new may have come: look and kill again
			}
		}
	}
	return len(t.members(nil)) == 0
}

// members lists the tree's living processes. known are pids that belong to it
// whatever their environment says now.
func (t *Tree) members(known map[int]uint64) []Info {
	table := Table()
	in := map[int]bool{}
	for _, p := range table {
		switch {
		case p.PID == t.Leader || p.start != 0 && (known[p.PID] == p.start || t.seen[p.PID] == p.start):
			in[p.PID] = true
		case t.Alone:
		case p.SID == t.Leader, t.tagged(p.PID):
			in[p.PID] = true
		}
	}
	for grew := !t.Alone; grew; {
		grew = false
		for _, p := range table {
			if in[p.PPID] && !in[p.PID] {
				in[p.PID], grew = true, true
			}
		}
	}
	var out []Info
	for _, p := range table {
		if in[p.PID] {
			out = append(out, p)
		}
	}
	return out
}

// tagged looks for the command's tag in a process's environment.
func (t *Tree) tagged(pid int) bool {
	return len(t.Tag) > 0 && bytes.Contains(environ(pid), t.Tag)
}

func signalAll(ps []Info, sig unix.Signal) {
	for _, p := range ps {
		_ = unix.Kill(p.PID, sig)
	}
}

// Table reads all processes but this one and those that have ended.
func Table() []Info {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	self := os.Getpid()
	var out []Info
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		raw, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything.
		i := bytes.LastIndexByte(raw, ')')
		if i < 0 {
			continue
		}
		f := strings.Fields(string(raw[i+1:]))
		if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
			continue
		}
		p := Info{PID: pid, State: f[0][0]}
		p.PPID, _ = strconv.Atoi(f[1])
		p.SID, _ = strconv.Atoi(f[3])
		p.start, _ = strconv.ParseUint(f[19], 10, 64)
		out = append(out, p)
	}
	return out
}

// environ reads a process's environment as it was at its exec, nil when that is not allowed.
func environ(pid int) []byte {
	path := "/proc/" + strconv.Itoa(pid) + "/environ"
	raw, err := os.ReadFile(path)
	if err == nil || os.Getuid() != 0 {
		return raw
	}
	// Without CAP_SYS_PTRACE root may read only what it could trace by user id.
	// A thread of its own takes the process's file-system ids for that and is not used again.
	var st unix.Stat_t
	if unix.Stat("/proc/"+strconv.Itoa(pid), &st) != nil {
		return nil
	}
	uid, gid, ok := realIDs(pid)
	if !ok {
		uid, gid = st.Uid, st.Gid
	}
	done := make(chan []byte, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var raw []byte
		if unix.Setfsgid(int(gid)) == nil && unix.Setfsuid(int(uid)) == nil {
			raw, _ = os.ReadFile(path)
		}
		done <- raw
	}()
	return <-done
}

// realIDs reads a process's user and group; the owner of its /proc entry is
// root for one that is not dumpable.
func realIDs(pid int) (uid, gid uint32, ok bool) {
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, 0, false
	}
	found := 0
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 || (f[0] != "Uid:" && f[0] != "Gid:") {
			continue
		}
		n, err := strconv.ParseUint(f[1], 10, 32)
		if err != nil {
			return 0, 0, false
		}
		if f[0] == "Uid:" {
			uid = uint32(n)
		} else {
			gid = uint32(n)
		}
		found++
	}
	return uid, gid, found == 2
}
