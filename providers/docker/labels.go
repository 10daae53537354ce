package docker

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"strconv"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Labels of what this provider makes. The first is how others find sandboxes;
// the rest lets a cleaner decide whether the one who made it still lives.
const (
	labelPrefix     = "nemo-gym."
	labelSandbox    = labelPrefix + "sandbox" // "1"
	labelRun        = labelPrefix + "run"
	labelOwnerPID   = labelPrefix + "owner-pid"
	labelOwnerStart = labelPrefix + "owner-start" // when that process started, in clock ticks after boot: pids are used again
	labelOwnerBoot  = labelPrefix + "owner-boot"
	labelOwnerSpace = labelPrefix + "owner-pid-space"
	labelOwnerState = labelPrefix + "owner-state" // which state directory the owner's ledger lies in, see stateMark
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
func processLabels() map[string]string {
	me := core.Self()
	return map[string]string{
		labelSandbox:    "1",
		labelRun:        me.Run,
		labelOwnerPID:   strconv.Itoa(me.PID),
		labelOwnerStart: me.Start,
		labelOwnerBoot:  me.Boot,
		labelOwnerSpace: me.Space,
		labelOwnerState: stateMark(),
		labelHost:       me.Host,
		labelVersion:    version,
	}
}

// ownerOf reads who made a container.
func ownerOf(labels map[string]string) core.Owner {
	pid, _ := strconv.Atoi(labels[labelOwnerPID]) // 0 is nobody
	return core.Owner{
		Run: labels[labelRun], Host: labels[labelHost], Boot: labels[labelOwnerBoot], Space: labels[labelOwnerSpace],
		PID: pid, Start: labels[labelOwnerStart],
	}
}

// stateMark stands for this user's state directory: whoever has another one can't see the ledgers and folders in it, and
// so not whether a sandbox is still used. The path itself is nobody's business.
func stateMark() string {
	dir, err := core.StateDir()
	if err != nil {
		return ""
	}
	sum := sha256.Sum256([]byte(dir))
	return hex.EncodeToString(sum[:6])
}

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
