package docker

import (
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/go-connections/nat"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// way is how commands get into a container.
type way int

const (
	waySocket way = iota // an agent, reached over a socket in a mounted directory
	wayStream            // an agent, reached over the stream of an engine exec
	wayEngine            // no agent: each command is an engine exec
)

func (w way) String() string {
	return [...]string{"socket", "stream", "engine"}[w]
}

func wayOf(label string) (way, bool) {
	for _, w := range []way{waySocket, wayStream, wayEngine} {
		if w.String() == label {
			return w, true
		}
	}
	return 0, false
}

// Where the agent lives inside a container.
const (
	agentDir    = "/.ngs/bin"
	agentBinary = agentDir + "/ngs-agent"
	agentRun    = "/.ngs/run"
)

// agentOOMScore keeps the kernel from choosing the agent when memory runs out; commands get their score back.
const agentOOMScore = -500

// plan is what is known about a sandbox before it is made.
type plan struct {
	name    string
	image   string
	spec    core.Spec
	img     image.InspectResponse
	engine  engineVersion
	flags   runArgs
	workdir string // of commands that name none
	user    string // the image's
	// single is set where the capabilities to change users are dropped.
	single bool
}

// newPlan reads what the spec and the configuration want.
func newPlan(cfg *config, spec core.Spec, imageName string, img image.InspectResponse, engine engineVersion) (*plan, error) {
	p := &plan{name: "nemo-gym-" + randomHex(16), image: imageName, spec: spec, img: img, engine: engine, workdir: spec.Workdir}
	if c := img.Config; c != nil {
		p.user = c.User
		if p.workdir == "" {
			p.workdir = c.WorkingDir
		}
	}
	p.flags.host = container.HostConfig{
		ReadonlyRootfs: cfg.Create.ReadOnly,
		CapDrop:        slices.Clone(cfg.Create.CapDrop),
		SecurityOpt:    slices.Clone(cfg.Create.SecurityOpt),
		NetworkMode:    container.NetworkMode(cfg.Create.Network),
	}
	if err := parseRunArgs(cfg.Create.ExtraRunArgs, &p.flags); err != nil {
		return nil, core.Errorf(core.KindInvalid, "", "create.extra_run_args: %w", err)
	}
	if err := p.readOptions(); err != nil {
		return nil, err
	}
	p.single = losesUsers(&p.flags.host)
	p.limits(cfg)
	return p, p.publish(cfg.Create.PublishHost)
}

// readOptions takes the spec's provider options: volumes and run_args.
func (p *plan) readOptions() error {
	var unknown []string
	for _, key := range slices.Sorted(maps.Keys(p.spec.ProviderOptions)) {
		value := p.spec.ProviderOptions[key]
		switch key {
		case "volumes":
			volumes, err := stringList(key, value)
			if err != nil {
				return err
			}
			for _, v := range volumes {
				if err := addBind(&p.flags.host, v); err != nil {
					return core.Errorf(core.KindInvalid, "", "provider option %q: %w", key, err)
				}
			}
		case "run_args":
			args, err := stringList(key, value)
			if err != nil {
				return err
			}
			if _, one := value.(string); one {
				args = strings.Fields(args[0])
			}
			if err := parseRunArgs(args, &p.flags); err != nil {
				return core.Errorf(core.KindInvalid, "", "provider option %q: %w", key, err)
			}
		default:
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slog.Warn("ignored provider options that docker does not know", "provider", providerName, "options", strings.Join(unknown, ", "), "known", "volumes, run_args")
	}
	return nil
}

// stringList takes a string or a list of strings, as decoded from JSON.
func stringList(option string, value any) ([]string, error) {
	switch v := value.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []string:
		return v, nil
	case []any:
		out := make([]string, len(v))
		for i, item := range v {
			s, ok := item.(string)
			if !ok {
				return nil, core.Errorf(core.KindInvalid, "", "provider option %q must be a string or a list of strings; its entry %d is neither", option, i)
			}
			out[i] = s
		}
		return out, nil
	}
	return nil, core.Errorf(core.KindInvalid, "", "provider option %q must be a string or a list of strings, not %T", option, value)
}

// losesUsers tells whether the capabilities left don't allow a process to become another user.
func losesUsers(h *container.HostConfig) bool {
	if h.Privileged {
		return false
	}
	has := func(list []string, name string) bool {
		return slices.ContainsFunc(list, func(c string) bool {
			return strings.TrimPrefix(strings.ToUpper(c), "CAP_") == name
		})
	}
	for _, name := range []string{"SETUID", "SETGID"} {
		dropped := has(h.CapDrop, "ALL") || has(h.CapDrop, name)
		if dropped && !has(h.CapAdd, name) && !has(h.CapAdd, "ALL") {
			return true
		}
	}
	return false
}

// limits sets what the sandbox may use.
func (p *plan) limits(cfg *config) {
	h, r := &p.flags.host, p.spec.Resources
	if cfg.Create.ApplyResourceLimits {
		if r.CPU > 0 {
			h.NanoCPUs = int64(math.Round(r.CPU * 1e9))
		}
		if r.MemoryMiB > 0 {
			h.Memory = int64(r.MemoryMiB) << 20
			h.MemorySwap = h.Memory // no swap on top
		}
	}
	// Without its devices a sandbox that asked for them is useless, so this is no mere limit.
	if r.GPU > 0 {
		h.DeviceRequests = append(h.DeviceRequests, container.DeviceRequest{Count: r.GPU, Capabilities: [][]string{{"gpu"}}})
	}
	if cfg.Create.PidsLimit != nil {
		h.PidsLimit = cfg.Create.PidsLimit
	}
}

// publish binds each port to one of the engine's choice.
func (p *plan) publish(host string) error {
	for _, port := range p.spec.Ports {
		key, err := nat.NewPort("tcp", strconv.Itoa(port))
		if err != nil {
			return core.Errorf(core.KindInvalid, "", "port %d: %w", port, err)
		}
		if p.flags.host.PortBindings == nil {
			p.flags.host.PortBindings = nat.PortMap{}
		}
		p.flags.host.PortBindings[key] = []nat.PortBinding{{HostIP: host, HostPort: ""}}
	}
	return nil
}

// homeSet tells whether image or spec say where home is; else it follows the user.
func (p *plan) homeSet() bool {
	if _, ok := p.spec.Env["HOME"]; ok {
		return true
	}
	return p.img.Config != nil && slices.ContainsFunc(p.img.Config.Env, func(kv string) bool { return strings.HasPrefix(kv, "HOME=") })
}

// container is the part that is the same for all ways.
func (p *plan) container(cfg *config, w way) containerSpec {
	host := p.flags.host
	host.Mounts = slices.Clone(host.Mounts)
	host.Tmpfs = maps.Clone(host.Tmpfs)
	host.AutoRemove = true // a sandbox that ends by itself leaves nothing
	ports := nat.PortSet{}
	for port := range host.PortBindings {
		ports[port] = struct{}{}
	}
	s := containerSpec{
		Config: &container.Config{
			Hostname:     p.flags.hostname,
			Image:        p.image,
			Env:          environ(p.spec.Env),
			WorkingDir:   p.spec.Workdir,
			Labels:       mergeLabels(p.flags.labels, newLabels(w, p.spec.TTL)),
			ExposedPorts: ports,
			// An image's health check would run a process now and then, and nobody looks at its outcome.
			Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
		},
		Host: &host,
	}
	if cfg.Create.Platform != "" {
		s.Platform, _ = parsePlatform(cfg.Create.Platform) // checked with the configuration
	}
	return s
}

// engineContainer is a container without an agent: something keeps it alive, or
// the spec's entry point does.
func (p *plan) engineContainer(cfg *config) containerSpec {
	s := p.container(cfg, wayEngine)
	s.Host.Init = &cfg.Create.UseInit
	if len(p.spec.Entrypoint) > 0 {
		s.Config.Entrypoint, s.Config.Cmd = p.spec.Entrypoint[:1], p.spec.Entrypoint[1:]
		if p.spec.TTL > 0 {
			slog.Warn("a sandbox with an entry point and without an agent does not end by its ttl", "provider", providerName, "sandbox", p.name)
		}
		return s
	}
	cmd := cfg.Create.KeepaliveCmd
	if p.spec.TTL > 0 {
		cmd = fmt.Sprintf("sleep %d", max(1, int64(math.Ceil(p.spec.TTL.Seconds()))))
	}
	s.Config.Entrypoint = []string{cfg.Create.KeepaliveShell, "-c", cmd}
	s.Config.Cmd = []string{}
	return s
}

// environ writes a map as NAME=value, sorted.
func environ(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for k, v := range env {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out
}

// bindMount fails at create when its source is missing, instead of making an empty directory there.
func bindMount(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly}
}

// fileMode turns the permissions of a Unix mode into Go's.
func fileMode(mode uint64) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for bit, flag := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if mode&bit != 0 {
			m |= flag
		}
	}
	return m
}
