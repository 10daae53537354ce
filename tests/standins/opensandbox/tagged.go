package opensandbox

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// boxVariable marks all processes of a sandbox; its value is the sandbox's folder, which no other server has.
const boxVariable = "STANDIN_BOX"

// killTagged ends all processes with a variable, as the end of a container would, until there is none.
func killTagged(variable string) {
	for found := true; found; {
		found = false
		files, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return
		}
		for _, file := range files {
			env, err := os.ReadFile(file)
			if err != nil || !bytes.Contains(append([]byte{0}, env...), []byte("\x00"+variable+"\x00")) {
				continue // it has ended, or is not ours
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				found = true
			}
		}
	}
}

// keepDescriptors lets no process of a sandbox inherit what this one has inherited.
func keepDescriptors() {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range open {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}
