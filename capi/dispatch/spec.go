package dispatch

import (
	"math"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// specRequest is a core.Spec as JSON. Absent and null fields are zero. Files is a list of pairs, since their order counts.
type specRequest struct {
	Image           string            `json:"image"`
	TTLS            float64           `json:"ttl_s"`
	ReadyTimeoutS   float64           `json:"ready_timeout_s"`
	Workdir         string            `json:"workdir"`
	Env             map[string]string `json:"env"`
	Files           [][2]string       `json:"files"`
	Metadata        map[string]string `json:"metadata"`
	Resources       resourcesRequest  `json:"resources"`
	Entrypoint      []string          `json:"entrypoint"`
	ProviderOptions map[string]any    `json:"provider_options"`
	Ports           []int             `json:"ports"`
	Sidecars        []sidecarRequest  `json:"sidecars"`
}

type resourcesRequest struct {
	CPU       float64 `json:"cpu"`
	MemoryMiB int     `json:"memory_mib"`
	DiskGiB   int     `json:"disk_gib"`
	GPU       int     `json:"gpu"`
	GPUType   string  `json:"gpu_type"`
}

func (r resourcesRequest) resources() core.Resources {
	return core.Resources{CPU: r.CPU, MemoryMiB: r.MemoryMiB, DiskGiB: r.DiskGiB, GPU: r.GPU, GPUType: r.GPUType}
}

type sidecarRequest struct {
	Name      string            `json:"name"`
	Image     string            `json:"image"`
	Env       map[string]string `json:"env"`
	Resources resourcesRequest  `json:"resources"`
}

// seconds is for spec fields: what is beyond a Duration is as good as for ever.
func seconds(name string, s float64) (time.Duration, error) {
	if s < 0 || math.IsNaN(s) {
		return 0, core.Errorf(core.KindInvalid, "create", "%s must not be negative, got %g", name, s)
	}
	if s >= float64(math.MaxInt64)/float64(time.Second) {
		return math.MaxInt64, nil
	}
	return time.Duration(s * float64(time.Second)), nil
}

func (r *specRequest) spec() (core.Spec, error) {
	ttl, err := seconds("ttl_s", r.TTLS)
	if err != nil {
		return core.Spec{}, err
	}
	ready, err := seconds("ready_timeout_s", r.ReadyTimeoutS)
	if err != nil {
		return core.Spec{}, err
	}
	s := core.Spec{
		Image: r.Image, TTL: ttl, ReadyTimeout: ready, Workdir: r.Workdir, Env: r.Env, Metadata: r.Metadata,
		Resources: r.Resources.resources(), Entrypoint: r.Entrypoint, ProviderOptions: r.ProviderOptions, Ports: r.Ports,
	}
	for _, f := range r.Files {
		s.Files = append(s.Files, core.File{Path: f[0], Content: f[1]})
	}
	for _, sc := range r.Sidecars {
		s.Sidecars = append(s.Sidecars, core.SidecarSpec{Name: sc.Name, Image: sc.Image, Env: sc.Env, Resources: sc.Resources.resources()})
	}
	return s, nil
}
