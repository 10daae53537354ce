package local

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// name is what the provider is registered as.
const name = "local"

// isolationEnv gives the default of the configuration key "isolation".
const isolationEnv = "NEMO_GYM_SANDBOX_LOCAL_ISOLATION"

// Values of the configuration key "isolation".
const (
	isolationAuto  = "auto"  // bubblewrap where it works, else none with a warning
	isolationBwrap = "bwrap" // bubblewrap or an error
	isolationNone  = "none"
)

// Values of the configuration key "network".
const (
	networkShared = "shared"
	networkNone   = "none"
)

const defaultShell = "/bin/bash"

// config is the provider's configuration block.
type config struct {
	WorkspaceRoot    string   `json:"workspace_root"`
	Shell            string   `json:"shell"`
	DefaultTimeoutS  float64  `json:"default_timeout_s"`
	Concurrency      *int     `json:"concurrency"`
	Isolation        string   `json:"isolation"`
	Network          string   `json:"network"`
	InheritEnv       []string `json:"inherit_env"`
	MaxOutputBytes   int64    `json:"max_output_bytes"`
	KillGraceS       float64  `json:"kill_grace_s"`
	OrphanTimeoutS   float64  `json:"orphan_timeout_s"`
	HandoverTimeoutS float64  `json:"handover_timeout_s"`
}

// parseConfig reads and checks a configuration block.
func parseConfig(raw json.RawMessage) (config, error) {
	c := config{
		Shell:            defaultShell,
		DefaultTimeoutS:  core.DefaultExecTimeout.Seconds(),
		Isolation:        isolationAuto,
		Network:          networkShared,
		MaxOutputBytes:   256 << 20,
		KillGraceS:       0.5,
		OrphanTimeoutS:   60,
		HandoverTimeoutS: 3600,
	}
	if v := os.Getenv(isolationEnv); v != "" {
		c.Isolation = v
	}
	if err := core.DecodeConfig(raw, &c); err != nil {
		return c, core.WithSandbox(err, core.KindInvalid, "", name, "")
	}
	return c, core.WithSandbox(c.validate(), core.KindInvalid, "", name, "")
}

func (c *config) validate() error {
	fail := func(format string, args ...any) error { return core.Errorf(core.KindInvalid, "", format, args...) }
	switch {
	case c.WorkspaceRoot != "" && !filepath.IsAbs(c.WorkspaceRoot):
		return fail("workspace_root %q must be an absolute path", c.WorkspaceRoot)
	case !filepath.IsAbs(c.Shell):
		return fail("shell %q must be an absolute path", c.Shell)
	case !(c.DefaultTimeoutS > 0):
		return fail("default_timeout_s must be positive")
	case c.Concurrency != nil && *c.Concurrency < 1:
		return fail("concurrency must be at least 1; leave it out for no limit")
	case !slices.Contains([]string{isolationAuto, isolationBwrap, isolationNone}, c.Isolation):
		return fail("isolation %q must be auto, bwrap or none (it comes from the configuration, else from %s)", c.Isolation, isolationEnv)
	case c.Network != networkShared && c.Network != networkNone:
		return fail("network %q must be shared or none", c.Network)
	case c.Network == networkNone && c.Isolation == isolationNone:
		return fail("network none needs isolation: an unisolated command has this machine's network")
	case c.MaxOutputBytes < 0:
		return fail("max_output_bytes must not be negative; 0 means no limit")
	case !(c.KillGraceS >= 0) || !(c.OrphanTimeoutS >= 0) || !(c.HandoverTimeoutS >= 0):
		return fail("kill_grace_s, orphan_timeout_s and handover_timeout_s must not be negative")
	}
	for _, v := range c.InheritEnv {
		if v == "" || strings.ContainsAny(v, "=\x00") {
			return fail("inherit_env: %q is not the name of a variable", v)
		}
	}
	return nil
}

// seconds turns a configured number of seconds into a duration, the largest one when it does not fit.
func seconds(s float64) time.Duration {
	const most = float64(1<<63 - 1)
	if ns := s * float64(time.Second); ns < most {
		return time.Duration(ns)
	}
	return 1<<63 - 1
}

// workspaceRoot is where workspaces that no spec names are made.
func (c *config) workspaceRoot() string {
	if c.WorkspaceRoot != "" {
		return c.WorkspaceRoot
	}
	return os.TempDir()
}
