package docker

import (
	"crypto/rand"
	"encoding/hex"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Labels of what this provider makes. The first is how others find sandboxes;
// the rest lets a cleaner decide whether the one who made it still lives.
const (
	labelPrefix     = "nemo-gym."
	labelSandbox    = labelPrefix + "sandbox" // "1"
	labelRun        = labelPrefix + "run"
	labelOwnerPID   = labelPrefix + "owner-pid"
	labelOwnerStart = labelPrefix + "owner-start" // when that process started, in clock ticks after boot: pids are used again
	labelHost       = labelPrefix + "host"
	labelCreated    = labelPrefix + "created"
	labelVersion    = labelPrefix + "version"
	labelWay        = labelPrefix + "way"   // how commands reach it, see way.String
	labelTTL        = labelPrefix + "ttl"   // seconds
	labelVolume     = labelPrefix + "agent" // on the volume that holds the agent
)

// version is what the labels call this project's release.
const version = "0.1.0"

// processLabels are the same for everything that this process makes.
var processLabels = sync.OnceValue(func() map[string]string {
	run := os.Getenv("NEMO_GYM_RUN_ID")
	if run == "" {
		run = randomHex(6)
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return map[string]string{
		labelSandbox:    "1",
		labelRun:        run,
		labelOwnerPID:   strconv.Itoa(os.Getpid()),
		labelOwnerStart: processStart("self"),
		labelHost:       host,
		labelVersion:    version,
	}
})

// newLabels are the labels of one new sandbox.
func newLabels(w way, ttl time.Duration) map[string]string {
	labels := mergeLabels(processLabels(), map[string]string{
		labelCreated: time.Now().UTC().Format(time.RFC3339),
		labelWay:     w.String(),
	})
	if ttl > 0 {
		labels[labelTTL] = strconv.FormatFloat(ttl.Seconds(), 'f', -1, 64)
	}
	return labels
}

// processStart reads when a process started, in clock ticks since boot, "" when it can't be told.
func processStart(pid string) string {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	// The second field is the program's name in parentheses, with anything in it.
	at := strings.LastIndexByte(string(stat), ')')
	fields := strings.Fields(string(stat[at+1:]))
	const startTime = 22 - 3 // its place in the whole line, less what was cut off
	if at < 0 || len(fields) <= startTime {
		return ""
	}
	return fields[startTime]
}

// randomHex is n random bytes in hexadecimal.
func randomHex(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// mergeLabels gives a new map; the later one wins.
func mergeLabels(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, b)
	return out
}
