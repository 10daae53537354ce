package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Statically checked: what the provider can do beyond the minimum.
var (
	_ core.Factory           = New
	_ core.Connector         = (*provider)(nil)
	_ core.HandoverTimeouter = (*provider)(nil)
	_ core.Janitor           = (*provider)(nil)
	_ core.Examiner          = (*provider)(nil)
)

// List implements core.Janitor: every folder of this user that holds, or held, a local sandbox.
func (p *provider) List(context.Context) ([]core.Found, error) {
	root, err := sandboxRoot()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, core.Errorf(core.KindInternal, "list", "look through the sandboxes' folders: %w", err)
	}
	var found []core.Found
	for _, e := range entries {
		if !idPattern.MatchString(e.Name()) {
			continue
		}
		if f, ok := foundFolder(e.Name(), filepath.Join(root, e.Name())); ok {
			found = append(found, f)
		}
	}
	return found, nil
}

// foundFolder reads what a sandbox's folder tells; ok is false for one that is being made or removed.
func foundFolder(id, dir string) (f core.Found, ok bool) {
	f = core.Found{ID: id, Provider: name, Status: core.StatusStopped}
	rec, err := loadRecord(dir)
	if err != nil {
		// Nobody is that long between a folder and its record: its maker was killed there.
		st, err := os.Stat(dir)
		if err != nil || time.Since(st.ModTime()) < recordGrace {
			return f, false
		}
		f.Created, f.OwnerState, f.Leftover = st.ModTime(), core.OwnerDead, true
		return f, true
	}
	f.Owner, f.OwnerState, f.Created = rec.Owner, rec.Owner.State(), rec.Created
	if rec.TTLS > 0 {
		f.Expires = rec.Created.Add(seconds(rec.TTLS))
	}
	switch {
	case rec.Agent.alive():
		f.Status = core.StatusRunning
		if _, err := os.Stat(filepath.Join(dir, pausedName)); err == nil {
			f.Status = core.StatusPaused
		}
	case !rec.Owner.Here():
		f.Status = core.StatusUnknown // its processes, if there are any, can't be seen
	case rec.Agent.PID == 0 && f.OwnerState == core.OwnerAlive:
		f.Status = core.StatusStarting
	case rec.Agent.PID == 0 && len(processesOf(dir)) > 0:
		f.Status = core.StatusRunning // its maker was killed before it could note the agent
	}
	f.Leftover = f.Status == core.StatusStopped
	return f, true
}

// Reap implements core.Janitor.
func (p *provider) Reap(ctx context.Context, id string) error {
	root, err := sandboxRoot()
	if err != nil {
		return err
	}
	if !idPattern.MatchString(id) {
		return core.Errorf(core.KindInvalid, "reap", "%q is not the id of a local sandbox", id)
	}
	dir := filepath.Join(root, id)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// Without a record there is nothing to know: then only the folder is removed, and what runs with it.
	rec, err := loadRecord(dir)
	if err == nil && !rec.Owner.Here() && rec.Owner.State() != core.OwnerDead {
		return core.Errorf(core.KindConflict, "reap", "the sandbox was made by a process on %s that can't be seen from here; reap it there", rec.Owner.Host)
	}
	if rec.Agent.PID == 0 {
		for _, root := range processesOf(dir) {
			if err := root.killTree(ctx); err != nil {
				return core.Errorf(core.KindSandbox, "reap", "end the sandbox's processes: %w", err)
			}
		}
	}
	in := &instance{provider: p, id: id, dir: &agent.HostDir{Path: dir}, rec: rec}
	return in.Destroy(ctx)
}

// processesOf finds the processes that were started with a sandbox's folder among their arguments: the agent, or the
// bubblewrap that became or will become its parent.
func processesOf(dir string) []procID {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []procID
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Arguments end with NUL; the folder may be the beginning of one, or stand behind a "=".
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Contains(args, []byte(dir+"/run")) {
			continue
		}
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		if err != nil || !isOurs(exe) {
			continue // somebody who looks at the folder, such as a pager or a search
		}
		if id, err := identify(pid); err == nil {
			found = append(found, id)
		}
	}
	return found
}

// isOurs tells whether a program is one that a local sandbox begins with.
func isOurs(exe string) bool {
	base := filepath.Base(exe)
	return strings.HasPrefix(base, "bwrap") || strings.HasPrefix(base, "ngs-agent")
}

func sandboxRoot() (string, error) {
	state, err := core.StateDir()
	if err != nil {
		return "", core.Errorf(core.KindInternal, "", "find the sandboxes' folders: %w", err)
	}
	return filepath.Join(state, "s"), nil
}
