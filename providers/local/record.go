package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// record is what a sandbox's folder tells another process about it, so that it
// can be connected to, ended, or cleared away when its creator is dead.
type record struct {
	Owner     core.Owner `json:"owner"` // the process that made the sandbox
	Agent     procID     `json:"agent"` // zero until it was started
	Created   time.Time  `json:"created"`
	TTLS      float64    `json:"ttl_s"` // 0: none
	Isolated  bool       `json:"isolated"`
	Network   string     `json:"network"`
	Workspace string     `json:"workspace"`
	Owned     bool       `json:"owned"` // the workspace goes with the sandbox
}

// Names inside a sandbox's folder.
const (
	recordName = "local.json"
	logName    = "agent.log"
	pausedName = "paused" // exists while the sandbox is paused
	tmpName    = "tmp"
	varTmpName = "vartmp"
)

var idPattern = regexp.MustCompile(`^local-[0-9a-f]{12}$`)

// save writes the record so that a reader sees the old or the new one.
func (r record) save(dir string) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the sandbox's record: %w", err)
	}
	next := filepath.Join(dir, recordName+".new")
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return fmt.Errorf("write the sandbox's record: %w", err)
	}
	if err := os.Rename(next, filepath.Join(dir, recordName)); err != nil {
		return fmt.Errorf("write the sandbox's record: %w", err)
	}
	return nil
}

func loadRecord(dir string) (record, error) {
	var r record
	raw, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, fmt.Errorf("read the sandbox's record: %w", err)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("read the sandbox's record: %w", err)
	}
	return r, nil
}

// recordGrace is for how long a folder without a record is taken for one that is being made.
const recordGrace = time.Minute

// clearLeftovers removes what is left of sandboxes that have ended and whose
// creators ended without removing them. It is best effort: what is in its way
// is logged and tried again by the next process.
func clearLeftovers() {
	state, err := core.StateDir()
	if err != nil {
		return
	}
	root := filepath.Join(state, "s")
	// No such folder yet means nothing to clear.
	entries, _ := os.ReadDir(root)
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if !idPattern.MatchString(e.Name()) || inUse(dir) {
			continue
		}
		if err := clearFolder(dir); err != nil {
			slog.Warn("can't clear away what is left of a sandbox; remove it by hand", "sandbox_id", e.Name(), "dir", dir, "error", err)
		}
	}
}

// inUse tells whether a sandbox's folder may still be needed. A state directory
// can be shared with other machines and containers, whose processes can't be
// seen from here: their sandboxes are theirs to clear.
func inUse(dir string) bool {
	rec, err := loadRecord(dir)
	if err != nil {
		st, err := os.Stat(dir)
		return err != nil || time.Since(st.ModTime()) < recordGrace
	}
	return rec.Owner.State() != core.OwnerDead || rec.Agent.alive() || rec.Agent.PID == 0 && len(processesOf(dir)) > 0
}

// clearFolder removes a sandbox's folder and the workspace that goes with it.
func clearFolder(dir string) error {
	var err error
	if rec, loadErr := loadRecord(dir); loadErr == nil && rec.Owned {
		err = removeTree(rec.Workspace)
	}
	return errors.Join(err, removeTree(dir))
}
