package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// indexServer is the name under which docker keeps the login to its default registry.
const indexServer = "https://index.docker.io/v1/"

// imageName takes the spec's image to what the engine is asked for. An image
// can also be given by its id.
func imageName(given string) (string, error) {
	name := strings.TrimPrefix(given, "docker://")
	if name == "" {
		return "", fmt.Errorf("image is required: set the spec's image to a name such as debian:12")
	}
	if strings.TrimSpace(name) != name {
		return "", fmt.Errorf("image %q must not begin or end with a space", name)
	}
	if _, err := reference.ParseAnyReference(name); err != nil {
		return "", fmt.Errorf("image %q is no image name: %w", name, err)
	}
	return name, nil
}

// parsePlatform reads os/arch[/variant].
func parsePlatform(s string) (*ocispec.Platform, error) {
	parts := strings.Split(s, "/")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || parts[1] == "" {
		return nil, fmt.Errorf("create.platform must be os/arch or os/arch/variant, such as linux/arm64, not %q", s)
	}
	p := &ocispec.Platform{OS: parts[0], Architecture: parts[1]}
	if len(parts) == 3 {
		p.Variant = parts[2]
	}
	return p, nil
}

// ensureImage gives the image's description, after pulling it where the policy says so.
func (p *Provider) ensureImage(ctx context.Context, name string) (image.InspectResponse, error) {
	policy := p.cfg.Create.PullPolicy
	if policy != pullAlways {
		img, err := p.engine.ImageInspect(ctx, name)
		switch {
		case err == nil && p.rightPlatform(img):
			return img, nil
		case err != nil && !notFound(err):
			return img, fmt.Errorf("look at image %s: %w", name, p.explained(ctx, err))
		case policy == pullNever:
			return img, core.Errorf(core.KindNotFound, "", "image %s is not on the engine (for the platform that is wanted), and create.pull_policy is %q: pull or load it first", name, pullNever)
		}
	}
	if _, err := p.pulls.do(ctx, name, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.pull(ctx, name)
	}); err != nil {
		return image.InspectResponse{}, err
	}
	img, err := p.engine.ImageInspect(ctx, name)
	if err != nil {
		return img, fmt.Errorf("look at image %s after pulling it: %w", name, p.explained(ctx, err))
	}
	return img, nil
}

// rightPlatform tells whether an image that is there is for the configured platform.
func (p *Provider) rightPlatform(img image.InspectResponse) bool {
	if p.cfg.Create.Platform == "" || img.Architecture == "" {
		return true
	}
	want, err := parsePlatform(p.cfg.Create.Platform)
	return err == nil && img.Os == want.OS && img.Architecture == want.Architecture && (want.Variant == "" || img.Variant == want.Variant)
}

// pull fetches an image. It ends with ctx also while a registry keeps silent.
func (p *Provider) pull(ctx context.Context, name string) error {
	ref, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return core.Errorf(core.KindNotFound, "", "image %s is not on the engine and can't be pulled by that name: %w", name, err)
	}
	auth, err := p.registryAuth(ctx, ref)
	if err != nil {
		return fmt.Errorf("pull image %s: %w", name, err)
	}
	slog.DebugContext(ctx, "pull image", "provider", providerName, "image", name)
	progress, err := p.engine.ImagePull(ctx, reference.TagNameOnly(ref).String(), p.cfg.Create.Platform, auth)
	if err != nil {
		return pullError(name, p.explained(ctx, err))
	}
	defer func() { _ = progress.Close() }()
	if err := followPull(ctx, name, progress); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return pullError(name, err)
	}
	return nil
}

// pullMessage is one line of a pull's progress.
type pullMessage struct {
	ID     string `json:"id"`
	Status string `json:"status"`
	Error  string `json:"error"`
	Detail *struct {
		Message string `json:"message"`
	} `json:"errorDetail"`
}

// followPull reads a pull's progress to its end, which is the end of the pull.
// A layer's state is logged when it changes, not each time its bytes are counted.
func followPull(ctx context.Context, name string, progress io.Reader) error {
	last := map[string]string{}
	for dec := json.NewDecoder(progress); ; {
		var m pullMessage
		if err := dec.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("the engine's progress report broke off: %w", err)
		}
		if m.Detail != nil && m.Detail.Message != "" {
			return errors.New(m.Detail.Message)
		}
		if m.Error != "" {
			return errors.New(m.Error)
		}
		if last[m.ID] != m.Status {
			last[m.ID] = m.Status
			slog.DebugContext(ctx, "pull image", "provider", providerName, "image", name, "layer", m.ID, "status", m.Status)
		}
	}
}

// pullError names the image and sorts the cause. Engines report what a registry
// said only as text, in the middle of their answer, so the text is looked at.
func pullError(name string, err error) error {
	text := strings.ToLower(err.Error())
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(text, w) {
				return true
			}
		}
		return false
	}
	switch {
	case errdefs.IsUnauthorized(err) || has("unauthorized", "authentication required", "no basic auth", "access denied", "incorrect username", "denied:"):
		return core.Errorf(core.KindAuth, "", "pull image %s: %w; log in to its registry with docker login, and check the name", name, err)
	case has("no matching manifest", "does not match the specified platform"):
		return core.Errorf(core.KindNotFound, "", "pull image %s: %w; the image has no variant for this engine's platform, see create.platform", name, err)
	case errdefs.IsNotFound(err) || has("manifest unknown", "not found", "does not exist"):
		return core.Errorf(core.KindNotFound, "", "pull image %s: %w; check the name and the tag", name, err)
	default:
		return fmt.Errorf("pull image %s: %w", name, err)
	}
}

// registryAuth looks up the login that the docker command has for an image's
// registry, asking its credential helper where one is configured.
func (p *Provider) registryAuth(ctx context.Context, ref reference.Named) (string, error) {
	file, err := p.target.logins()
	if err != nil {
		return "", err
	}
	server := reference.Domain(ref)
	if server == "docker.io" {
		server = indexServer
	}
	type answer struct {
		auth registry.AuthConfig
		err  error
	}
	answered := make(chan answer, 1)
	go func() { // ends when the helper program does; nobody waits for a helper that hangs
		found, err := file.GetAuthConfig(server)
		answered <- answer{registry.AuthConfig{
			Username: found.Username, Password: found.Password, Auth: found.Auth, ServerAddress: found.ServerAddress,
			IdentityToken: found.IdentityToken, RegistryToken: found.RegistryToken,
		}, err}
	}()
	select {
	case a := <-answered:
		if a.err != nil {
			// The helper's output may hold a secret; only its complaint is passed on, cut short.
			return "", core.Errorf(core.KindAuth, "", "login for registry %s: docker's credential helper failed: %.200s", server, a.err.Error())
		}
		return registry.EncodeAuthConfig(a.auth)
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// checkPlatform reports an image that the engine's machine can't run, before anything is made.
func checkPlatform(name string, img image.InspectResponse, engine engineVersion, wanted string) error {
	if engine.OS != "" && engine.OS != "linux" {
		return fmt.Errorf("the engine runs %s containers; this provider needs an engine for linux containers", engine.OS)
	}
	// Somebody who names a platform may have an emulator for it.
	if wanted != "" || img.Architecture == "" || img.Os == "" || engine.Arch == "" {
		return nil
	}
	runs := img.Architecture == engine.Arch || (engine.Arch == "amd64" && img.Architecture == "386") || (engine.Arch == "arm64" && img.Architecture == "arm")
	if img.Os == engine.OS && runs {
		return nil
	}
	return fmt.Errorf("image %s is built for the platform %s/%s, the engine's is %s/%s: use an image for that architecture, or set create.platform if the engine can emulate",
		name, img.Os, img.Architecture, engine.OS, engine.Arch)
}
