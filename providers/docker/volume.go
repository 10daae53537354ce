package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
)

// volumePrefix begins the name of the volume that carries the agent where the
// engine can't see this machine's files.
const volumePrefix = "nemo-gym-sandbox-agent-"

// agentVolume gives the name of the engine's volume with the agent in it,
// filling it at the first use.
func (p *Provider) agentVolume(ctx context.Context, pl *plan) (string, error) {
	hash, err := agent.BinaryHash(pl.engine.Arch)
	if err != nil {
		return "", &unsuited{err}
	}
	p.mu.Lock()
	known := p.volumeOf[pl.engine.Arch]
	p.mu.Unlock()
	if known != "" {
		return known, nil
	}
	name := volumePrefix + hash + "-" + pl.engine.Arch
	return p.volumes.do(ctx, name, func(ctx context.Context) (string, error) {
		if err := p.fillVolume(ctx, name, pl); err != nil {
			return "", fmt.Errorf("put the agent on the engine (volume %s): %w", name, err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.volumeOf[pl.engine.Arch] = name
		return name, nil
	})
}

// forgetVolume makes the next sandbox look whether the volume is still filled.
func (p *Provider) forgetVolume(arch string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.volumeOf, arch)
}

// fillVolume copies the agent into the volume through a container that is never
// started. Others may do the same at the same time: the engine unpacks a file
// under a name of its own and renames it, and all of them bring the same bytes.
func (p *Provider) fillVolume(ctx context.Context, name string, pl *plan) (err error) {
	if err := p.engine.VolumeCreate(ctx, name, mergeLabels(processLabels(), map[string]string{labelVolume: pl.engine.Arch})); err != nil {
		return err
	}
	helper := &instance{p: p, name: "nemo-gym-agent-" + randomHex(16)}
	defer func() { err = errors.Join(err, helper.discard(ctx)) }()
	if err := p.makeContainer(ctx, helper.name, containerSpec{
		Config: &container.Config{
			Image: pl.image, Entrypoint: []string{agentBinary}, Cmd: []string{},
			Labels:      newLabels(wayEngine, 0),
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		Host: &container.HostConfig{
			NetworkMode: "none",
			Mounts: []mount.Mount{{
				Type: mount.TypeVolume, Source: name, Target: agentDir,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true},
			}},
		},
	}); err != nil {
		return err
	}
	data, err := agent.BinaryBytes(pl.engine.Arch)
	if err != nil {
		return err
	}
	if there, err := p.volumeHolds(ctx, helper.name, data); err != nil || there {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := w.WriteHeader(&tar.Header{Name: path.Base(agentBinary), Mode: 0o755, Size: int64(len(data)), ModTime: time.Unix(0, 0), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return p.engine.CopyTo(ctx, helper.name, agentDir, &archive)
}

// volumeHolds compares what the volume has with what it should have.
func (p *Provider) volumeHolds(ctx context.Context, helper string, want []byte) (bool, error) {
	archive, err := p.engine.CopyFrom(ctx, helper, agentBinary)
	if notFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = archive.Close() }()
	r := tar.NewReader(archive)
	h, err := r.Next()
	if err != nil || h.Size != int64(len(want)) || h.Mode&0o111 == 0 {
		return false, nil // damaged: it is written again
	}
	have := make([]byte, len(want))
	if _, err := io.ReadFull(r, have); err != nil {
		return false, nil
	}
	return bytes.Equal(have, want), nil
}
