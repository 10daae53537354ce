package core

import (
	"fmt"
	"path"
	"strings"
	"time"
)

// Spec is a request for one sandbox. Validate it once, at the edge; below that
// its fields can be relied on. A zero Spec is valid.
type Spec struct {
	Image           string        // backend's name of the root file system; "" where the backend needs none
	TTL             time.Duration // the sandbox ends itself after this long; 0 means never
	ReadyTimeout    time.Duration // bound on becoming ready; 0 means the backend's default
	Workdir         string        // default directory of commands; "" means the backend's default
	Env             map[string]string
	Files           []File // written before the first command, in this order
	Metadata        map[string]string
	Resources       Resources
	Entrypoint      []string       // main process; when it ends the sandbox ends with its code
	ProviderOptions map[string]any // checked by the backend
	Ports           []int          // TCP ports that Endpoint can be asked for
	Sidecars        []SidecarSpec
}

// File is a text file that a sandbox starts with.
type File struct {
	Path    string
	Content string
}

// Resources is what a sandbox may use; zero fields are left to the backend.
type Resources struct {
	CPU       float64 // cores
	MemoryMiB int
	DiskGiB   int
	GPU       int
	GPUType   string
}

// SidecarSpec is a further process environment beside a sandbox, in its network.
type SidecarSpec struct {
	Name      string
	Image     string
	Env       map[string]string
	Resources Resources
}

// Validate reports the first thing in the spec that no backend could serve.
func (s *Spec) Validate() error {
	fail := func(format string, args ...any) error {
		return &Error{Kind: KindInvalid, Op: "create", Err: fmt.Errorf(format, args...)}
	}
	if s.TTL < 0 || s.ReadyTimeout < 0 {
		return fail("ttl_s and ready_timeout_s must not be negative")
	}
	if s.Workdir != "" && !path.IsAbs(s.Workdir) {
		return fail("workdir %q must be an absolute path", s.Workdir)
	}
	if err := ValidateEnv(s.Env); err != nil {
		return fail("env: %w", err)
	}
	if s.Resources.negative() {
		return fail("resources must not be negative")
	}
	seen := map[int]bool{}
	for _, p := range s.Ports {
		if p < 1 || p > 65535 {
			return fail("sandbox TCP port %d must be between 1 and 65535", p)
		}
		if seen[p] {
			return fail("Duplicate sandbox TCP port %d", p)
		}
		seen[p] = true
	}
	names := map[string]bool{}
	for _, sc := range s.Sidecars {
		if sc.Name == "" || sc.Image == "" {
			return fail("a sidecar needs a name and an image")
		}
		if names[sc.Name] {
			return fail("sidecar names must be unique: %q", sc.Name)
		}
		names[sc.Name] = true
		if err := ValidateEnv(sc.Env); err != nil {
			return fail("env of sidecar %q: %w", sc.Name, err)
		}
		if sc.Resources.negative() {
			return fail("resources of sidecar %q must not be negative", sc.Name)
		}
	}
	for _, f := range s.Files {
		if err := checkRemoteTarget(f.Path); err != nil {
			return fail("files: %w", err)
		}
	}
	return nil
}

func (r Resources) negative() bool {
	return r.CPU < 0 || r.MemoryMiB < 0 || r.DiskGiB < 0 || r.GPU < 0
}

// ValidateEnv reports a name or value that no process can carry. Values are
// never part of the message: they may be secret.
func ValidateEnv(env map[string]string) error {
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") {
			return fmt.Errorf("variable name %q must not be empty or contain '=' or NUL", k)
		}
		if strings.Contains(v, "\x00") {
			return fmt.Errorf("the value of variable %q contains NUL", k)
		}
	}
	return nil
}
