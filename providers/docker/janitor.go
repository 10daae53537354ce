package docker

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Location implements core.Located.
func (p *Provider) Location() string { return withoutSecrets(p.target.host) }

// makingGrace is for how long a folder whose owner can't be seen is taken for that of a sandbox which is being made.
const makingGrace = time.Minute

// List implements core.Janitor. It finds what anybody's processes made on this engine, and the folders of this user
// whose containers are gone.
func (p *Provider) List(ctx context.Context) ([]core.Found, error) {
	if _, err := p.engineVersion(ctx); err != nil {
		return nil, p.listFailed(ctx, err)
	}
	// Before the containers: a folder that is made meanwhile is not taken for one whose container is gone.
	folders, err := agent.SignedHostDirs()
	if err != nil {
		return nil, core.Errorf(core.KindInternal, "list", "%w", err)
	}
	containers, err := p.engine.ContainerList(ctx, labelSandbox+"=1")
	if err != nil {
		return nil, p.listFailed(ctx, err)
	}
	var found []core.Found
	there := map[string]bool{}
	mark := stateMark()
	for _, c := range containers {
		there[containerName(c)] = true
	}
	for _, c := range containers {
		// A sidecar shares its sandbox's lot, and is one of its own only when that has gone without it.
		if of := c.Labels[labelSidecarOf]; of == "" || !there[of] {
			found = append(found, foundContainer(c, mark))
		}
	}
	for _, dir := range folders {
		if !there[dir.ID] && p.leftover(dir) {
			found = append(found, core.Found{
				ID: dir.ID, Provider: providerName, Owner: dir.Owner, OwnerState: dir.Owner.State(), Created: dir.Made,
				Status: core.StatusStopped, Leftover: true,
			})
		}
	}
	return found, nil
}

// leftover tells whether a folder without a container is of no use any more. Another engine's containers can't be seen
// from here, and an owner that lives removes the folder itself.
func (p *Provider) leftover(dir agent.Signed) bool {
	if dir.Provider != providerName || dir.Location != p.Location() {
		return false
	}
	switch dir.Owner.State() {
	case core.OwnerAlive:
		return false
	case core.OwnerDead:
		return true
	}
	return time.Since(dir.Made) > makingGrace
}

// listFailed tells an engine that is not on this machine from one that is in trouble.
func (p *Provider) listFailed(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return core.Errorf(core.KindCanceled, "list", "gave up asking the engine at %s: %w", p.Location(), context.Cause(ctx))
	case p.target.host == defaultHost:
		if _, statErr := os.Stat(strings.TrimPrefix(defaultHost, "unix://")); errors.Is(statErr, fs.ErrNotExist) {
			return core.Errorf(core.KindNotFound, "list", "there is no Docker engine on this machine (no socket %s)", defaultHost)
		}
	}
	return core.Errorf(core.KindSandbox, "list", "%w", p.explained(ctx, err))
}

func containerName(c container.Summary) string {
	if len(c.Names) == 0 {
		return c.ID
	}
	return strings.TrimPrefix(c.Names[0], "/")
}

// foundContainer reads what a container's labels tell; mark is this process's stateMark.
func foundContainer(c container.Summary, mark string) core.Found {
	f := core.Found{ID: containerName(c), Provider: providerName, Owner: ownerOf(c.Labels), Status: listedStatus(c.State)}
	f.OwnerState = f.Owner.State()
	switch {
	case c.Labels[labelOwnerState] != mark:
		// Its owner's notes are another user's, or on another machine.
		if f.OwnerState == core.OwnerDead {
			f.OwnerState = core.OwnerUnknown
		}
	case f.OwnerState == core.OwnerDead && f.Owner.Boot != core.Self().Boot && f.Status != core.StatusStopped:
		// It runs, so the engine was not started anew with this machine; perhaps another one has the same name.
		f.OwnerState = core.OwnerUnknown
	}
	if created, err := time.Parse(time.RFC3339, c.Labels[labelCreated]); err == nil {
		f.Created = created
	} else {
		f.Created = time.Unix(c.Created, 0)
	}
	if ttl, err := strconv.ParseFloat(c.Labels[labelTTL], 64); err == nil && ttl > 0 && ttl < longestTTL {
		f.Expires = f.Created.Add(seconds(ttl))
	}
	return f
}

// longestTTL in seconds is as good as for ever, and more would not fit a Duration.
const longestTTL = 1e9

func listedStatus(state container.ContainerState) core.Status {
	return stateVerdict(&container.State{Status: state}).status
}

// Reap implements core.Janitor.
func (p *Provider) Reap(ctx context.Context, id string) error {
	if _, err := p.engineVersion(ctx); err != nil {
		return core.Errorf(core.KindSandbox, "reap", "%w", err)
	}
	c, err := p.engine.ContainerInspect(ctx, id)
	switch {
	case notFound(err): // a folder may be left, or sidecars
	case err != nil:
		return p.reapFailed(ctx, err)
	case c.Config == nil || c.Config.Labels[labelSandbox] != "1":
		return core.Errorf(core.KindInvalid, "reap", "the container %s is no sandbox of this project; it is left alone", id)
	default:
		id = strings.TrimPrefix(c.Name, "/")
	}
	// The sandbox comes last: while it is there it is found again when this is cut short.
	sidecars, err := p.engine.ContainerList(ctx, labelSidecarOf+"="+id)
	if err != nil {
		return p.reapFailed(ctx, err)
	}
	for _, side := range sidecars {
		if err := p.removeWithFolder(ctx, containerName(side)); err != nil {
			return err
		}
	}
	return p.removeWithFolder(ctx, id)
}

func (p *Provider) reapFailed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return core.Errorf(core.KindTimeout, "reap", "asking the engine timed out: %w", context.Cause(ctx))
	}
	return core.Errorf(core.KindSandbox, "reap", "%w", p.explained(ctx, err))
}

func (p *Provider) removeWithFolder(ctx context.Context, name string) error {
	if err := (&instance{p: p, name: name}).remove(ctx); err != nil {
		return err
	}
	return p.removeFolder(name)
}

// removeFolder removes what is left of a sandbox of this engine, unless its owner is still making it.
func (p *Provider) removeFolder(id string) error {
	folders, err := agent.SignedHostDirs()
	if err != nil {
		return core.Errorf(core.KindInternal, "reap", "%w", err)
	}
	for _, dir := range folders {
		if dir.ID == id && p.leftover(dir) {
			return dir.Dir.Remove()
		}
	}
	return nil
}
