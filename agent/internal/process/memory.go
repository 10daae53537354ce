package process

import (
	"bytes"
	"os"
	"strconv"
)

// MemoryLimit is that of the sandbox's own control group, version 2 or 1; 0 when there is none.
func MemoryLimit() int64 {
	for _, p := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		raw, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		// "max", and what version 1 says instead, are beyond any memory there is.
		if n, err := strconv.ParseInt(string(bytes.TrimSpace(raw)), 10, 64); err == nil {
			return n
		}
	}
	return 0
}
