package daemon

import (
	"bytes"
	"os"
	"strconv"
)

// oomCounter reads how many processes of the sandbox the kernel has killed for
// memory. It is the only proof of such a kill: an exit code is not.
type oomCounter struct{ f *os.File }

// newOOMCounter opens the counter of the sandbox's own control group, version 2 or 1.
func newOOMCounter() *oomCounter {
	for _, p := range []string{"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"} {
		if f, err := os.Open(p); err == nil {
			return &oomCounter{f: f}
		}
	}
	return &oomCounter{}
}

func (c *oomCounter) read() int {
	if c.f == nil {
		return 0
	}
	var buf [512]byte
	n, _ := c.f.ReadAt(buf[:], 0)
	for line := range bytes.Lines(buf[:n]) {
		if f := bytes.Fields(line); len(f) == 2 && string(f[0]) == "oom_kill" {
			k, _ := strconv.Atoi(string(f[1]))
			return k
		}
	}
	return 0
}
