package agent

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

const (
	sigstop = syscall.SIGSTOP
	sigcont = syscall.SIGCONT
)

// marker is a number of seconds to sleep that no other process uses.
func marker() string { return strconv.Itoa(10_000_000 + rand.IntN(80_000_000)) }

// alive finds the processes, not the zombies, whose last argument is a marker.
func alive(mark string) []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		raw, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if err != nil {
			continue
		}
		args := bytes.Split(bytes.TrimRight(raw, "\x00"), []byte{0})
		if string(args[len(args)-1]) == mark {
			found = append(found, filepath.Base(d))
		}
	}
	return found
}

func openFDs() int {
	d, _ := os.ReadDir("/proc/self/fd")
	return len(d)
}
