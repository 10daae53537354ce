package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/image"
	"golang.org/x/sync/errgroup"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Labels of a sidecar's container, beside those of every sandbox.
const (
	labelSidecar   = labelPrefix + "sidecar"    // its name in the spec
	labelSidecarOf = labelPrefix + "sidecar-of" // the sandbox's id
)

// descriptorSidecars is the key of a description that lists the sidecars, each with a "name".
const descriptorSidecars = "sidecars"

// sidecarContainer names the container of a sidecar, so that whoever knows the
// sandbox finds it. The sidecar's own name may hold what a container's can't.
func sidecarContainer(sandbox, name string) string {
	sum := sha256.Sum256([]byte(name))
	return sandbox + "-" + hex.EncodeToString(sum[:4])
}

// launchSidecars starts what the spec wants beside the sandbox.
func (p *Provider) launchSidecars(ctx context.Context, main *instance, specs []core.SidecarSpec, engine engineVersion) error {
	if len(specs) == 0 {
		return nil
	}
	made := make([]*instance, len(specs))
	g, ctx := errgroup.WithContext(ctx)
	for n, spec := range specs {
		g.Go(func() (err error) {
			if made[n], err = p.launchSidecar(ctx, main, spec, engine); err != nil {
				return fmt.Errorf("sidecar %q: %w", spec.Name, err)
			}
			return nil
		})
	}
	err := g.Wait()
	main.sidecars = map[string]*instance{}
	for n, spec := range specs {
		if made[n] != nil {
			main.sidecars[spec.Name] = made[n] // also after a failure, whose clean-up then finds it
		}
	}
	return err
}

// launchSidecar starts one: a sandbox of its own, but in the network of the main
// one and with its image's program running in it.
func (p *Provider) launchSidecar(ctx context.Context, main *instance, side core.SidecarSpec, engine engineVersion) (*instance, error) {
	name, err := imageName(side.Image)
	if err != nil {
		return nil, err
	}
	img, err := p.ensureImage(ctx, name)
	if err != nil {
		return nil, err
	}
	if err := checkPlatform(name, img, engine, p.cfg.Create.Platform); err != nil {
		return nil, err
	}
	cfg := p.cfg
	cfg.Create.Network = "container:" + main.name
	cfg.Create.ExtraRunArgs = nil // they are the sandbox's, and most can't be set in somebody else's network
	spec := core.Spec{Image: side.Image, Env: side.Env, Resources: side.Resources, TTL: main.ttl, Entrypoint: program(img)}
	pl, err := newPlan(&cfg, spec, name, img, engine)
	if err != nil {
		return nil, err
	}
	pl.name = sidecarContainer(main.name, side.Name)
	pl.flags.labels = mergeLabels(pl.flags.labels, map[string]string{labelSidecar: side.Name, labelSidecarOf: main.name})
	watch, stop := context.WithCancel(ctx)
	defer stop()
	made, _, err := p.launchSomehow(ctx, watch, pl)
	return made, err
}

// program is what an image runs.
func program(img image.InspectResponse) []string {
	if img.Config == nil {
		return nil
	}
	return slices.Concat([]string(img.Config.Entrypoint), []string(img.Config.Cmd))
}

// sidecar finds a sidecar by its name in the spec.
func (i *instance) sidecar(name string) (*instance, error) {
	if side := i.sidecars[name]; side != nil {
		return side, nil
	}
	names := make([]string, 0, len(i.sidecars))
	for n := range i.sidecars {
		names = append(names, n)
	}
	slices.Sort(names)
	return nil, core.Errorf(core.KindInvalid, "sidecar", "sidecar %q was not declared in the spec's sidecars; declared: [%s]", name, strings.Join(names, ", "))
}

// SidecarExec implements core.Sidecars.
func (i *instance) SidecarExec(ctx context.Context, name string, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	side, err := i.sidecar(name)
	if err != nil {
		return core.ExecResult{}, err
	}
	return side.Exec(ctx, req, sink)
}

// SidecarDownload implements core.Sidecars.
func (i *instance) SidecarDownload(ctx context.Context, name, remotePath, localPath string) error {
	side, err := i.sidecar(name)
	if err != nil {
		return err
	}
	return side.Download(ctx, remotePath, localPath)
}

// takeUpSidecars connects to the sidecars that a description lists.
func (p *Provider) takeUpSidecars(ctx context.Context, main *instance, listed any) error {
	entries, _ := listed.([]any)
	for _, e := range entries {
		about, _ := e.(map[string]any)
		name, _ := about["name"].(string)
		if name == "" {
			return errors.New("an entry of the description's sidecars has no name")
		}
		id := sidecarContainer(main.name, name)
		c, err := p.engine.ContainerInspect(ctx, id)
		if err == nil {
			var side *instance
			if side, _, err = p.takeUp(ctx, id, c); err == nil {
				if main.sidecars == nil {
					main.sidecars = map[string]*instance{}
				}
				main.sidecars[name] = side
			}
		}
		if err != nil {
			return fmt.Errorf("sidecar %q: %w", name, err)
		}
	}
	return nil
}

// together does something to the sandbox and its sidecars at once; all are tried, and all errors are reported.
func (i *instance) together(do func(*instance) error) error {
	if len(i.sidecars) == 0 {
		return do(i)
	}
	all := []*instance{i}
	for _, side := range i.sidecars {
		all = append(all, side)
	}
	errs := make([]error, len(all))
	var g errgroup.Group
	for n, one := range all {
		g.Go(func() error {
			errs[n] = do(one)
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}
