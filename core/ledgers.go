package core

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// ledgerFile is what one process has noted.
type ledgerFile struct {
	path   string
	owner  Owner
	state  OwnerState
	claims map[claimKey]claim
}

type ledgerFiles []ledgerFile

// claimOf is a claim and who has it.
type claimOf struct {
	claim
	owner Owner
	state OwnerState
}

// ledgerGrace is for how long a file without an owner is taken for one that is being written.
const ledgerGrace = time.Minute

// readLedgers reads what this user's processes have noted. What can't be read is as good as not noted.
func readLedgers() ledgerFiles {
	dir, err := ledgerDir()
	if err != nil {
		return nil
	}
	// No such folder means that nothing was noted.
	names, _ := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	var all ledgerFiles
	for _, path := range names {
		f, err := readLedger(path)
		if err == nil {
			all = append(all, f)
		}
	}
	return all
}

var errNoOwner = errors.New("the ledger does not say whose it is")

func readLedger(path string) (ledgerFile, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ledgerFile{}, err
	}
	f := ledgerFile{path: path, claims: map[claimKey]claim{}}
	found := false
	for text := range bytes.SplitSeq(raw, []byte("\n")) {
		var line ledgerLine
		if json.Unmarshal(text, &line) != nil {
			continue // torn: its writer was killed, or had no room
		}
		if line.Event == eventProcess && line.Owner != nil {
			f.owner, found = *line.Owner, true
		}
		line.apply(f.claims)
	}
	if !found {
		return f, errNoOwner
	}
	f.state = f.owner.State()
	return f, nil
}

// claims lists what processes have noted about one sandbox.
func (all ledgerFiles) claims(k claimKey) []claimOf {
	var found []claimOf
	for _, f := range all {
		if c, ok := f.claims[k]; ok {
			found = append(found, claimOf{c, f.owner, f.state})
		}
	}
	return found
}

// forget takes claims out of the ledgers of dead processes, and removes ledgers that hold none any more. Living
// processes keep their own.
func (all ledgerFiles) forget(gone func(claim) bool) {
	for _, f := range all {
		if f.state != OwnerDead {
			continue
		}
		before := len(f.claims)
		for k, c := range f.claims {
			if gone(c) {
				delete(f.claims, k)
			}
		}
		var err error
		switch {
		case len(f.claims) == 0:
			err = os.Remove(f.path)
		case len(f.claims) < before:
			var file *os.File
			if file, _, err = writeLedger(f.path, f.owner, f.claims); err == nil {
				err = file.Close()
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("can't tidy the ledger of a dead process", "path", f.path, "error", err.Error())
		}
	}
	removeStray()
}

// removeStray removes what is left of ledgers whose writing was cut short.
func removeStray() {
	dir, err := ledgerDir()
	if err != nil {
		return
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		st, err := e.Info()
		if err != nil || time.Since(st.ModTime()) < ledgerGrace {
			continue
		}
		stray := filepath.Ext(path) == unfinished
		if !stray {
			_, err := readLedger(path)
			stray = errors.Is(err, errNoOwner)
		}
		if stray {
			_ = os.Remove(path) // tried again by the next
		}
	}
}
