package suite

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// stock is what this process holds at one time.
type stock struct {
	goroutines goleak.Option
	files      map[string]string
	children   map[string]bool
}

func takeStock() stock {
	return stock{goroutines: goleak.IgnoreCurrent(), files: openFiles(), children: children()}
}

// check fails the test when something has been added. What is just being given back gets time for it.
func (s stock) check(t *testing.T) {
	t.Helper()
	if err := goleak.Find(s.goroutines); err != nil {
		t.Errorf("goroutines are left: %v", err)
	}
	var left []string
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		left = left[:0]
		now := openFiles()
		if len(now) > len(s.files) {
			for fd, what := range now {
				if s.files[fd] != what {
					left = append(left, fmt.Sprintf("descriptor %s of %s", fd, what))
				}
			}
		}
		for c := range children() {
			if !s.children[c] {
				left = append(left, "child process "+c)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			break
		}
	}
	t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}

func openFiles() map[string]string {
	found := map[string]string{}
	fds, _ := filepath.Glob("/proc/self/fd/*")
	for _, fd := range fds {
		if what, err := os.Readlink(fd); err == nil {
			found[filepath.Base(fd)] = what
		}
	}
	return found
}

func children() map[string]bool {
	found := map[string]bool{}
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, l := range lists {
		raw, _ := os.ReadFile(l)
		for _, pid := range strings.Fields(string(raw)) {
			found[pid] = true
		}
	}
	return found
}
