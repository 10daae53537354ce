package docker

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// config is the provider's configuration block. Pointers are fields for which
// null says something of its own: no limit, no check, or "choose".
type config struct {
	Create     createConfig     `json:"create"`
	Exec       execConfig       `json:"exec"`
	Probe      probeConfig      `json:"probe"`
	Connection connectionConfig `json:"connection"`
}

// createConfig says how containers are made.
type createConfig struct {
	KeepaliveShell      string   `json:"keepalive_shell"`       // runs KeepaliveCmd where no agent runs
	KeepaliveCmd        string   `json:"keepalive_cmd"`         // keeps the container alive there
	StartTimeoutS       *float64 `json:"start_timeout_s"`       // seconds for everything from pull to first answer; null: no limit
	UseInit             bool     `json:"use_init"`              // a process 1 that reaps; the agent is one
	Network             string   `json:"network"`               // "" is the engine's default
	ReadOnly            bool     `json:"read_only"`             // root file system
	CapDrop             []string `json:"cap_drop"`              // capabilities taken away
	SecurityOpt         []string `json:"security_opt"`          // handed to the engine as they are
	PidsLimit           *int64   `json:"pids_limit"`            // processes and threads; null: the engine's default
	ExtraRunArgs        []string `json:"extra_run_args"`        // flags as for docker run, see runargs.go
	ApplyResourceLimits bool     `json:"apply_resource_limits"` // false: the spec's cpu and memory are only advice
	PublishHost         string   `json:"publish_host"`          // address on which ports are published
	OrphanTimeoutS      float64  `json:"orphan_timeout_s"`      // the sandbox ends so long after its last client left; 0: never
	HandoverTimeoutS    float64  `json:"handover_timeout_s"`    // the same, once it was serialized
	AgentTransport      string   `json:"agent_transport"`       // auto, socket, stream
	Platform            string   `json:"platform"`              // os/arch[/variant]; "" is the engine's own
	PullPolicy          string   `json:"pull_policy"`           // missing, always, never
}

// execConfig says how commands are run.
type execConfig struct {
	DefaultTimeoutS *float64 `json:"default_timeout_s"` // for commands without one; null: none
	ExtraExecArgs   []string `json:"extra_exec_args"`   // flags as for docker exec; they force mode engine
	Concurrency     *int     `json:"concurrency"`       // commands at once; unset: 32 in mode engine, else no limit
	ExecShell       *string  `json:"exec_shell"`        // null: bash when the container has it, else sh
	Mode            string   `json:"mode"`              // auto, agent, engine
	MaxOutputBytes  int64    `json:"max_output_bytes"`  // kept per stream by callers that collect; 0: all
	KillGraceS      float64  `json:"kill_grace_s"`      // seconds between SIGTERM and SIGKILL
}

// probeConfig says when a new sandbox counts as ready.
type probeConfig struct {
	Command        *string  `json:"command"` // null: none
	ExpectedStdout *string  `json:"expected_stdout"`
	TimeoutS       *float64 `json:"timeout_s"`  // per try
	DeadlineS      *float64 `json:"deadline_s"` // null: the first failure is final
	StableCount    int      `json:"stable_count"`
	StableDelayS   float64  `json:"stable_delay_s"`
}

// connectionConfig says where the engine is; what it leaves open is looked up as the docker command does.
type connectionConfig struct {
	Host       string `json:"host"`
	Context    string `json:"context"`
	TLSVerify  *bool  `json:"tls_verify"`
	CertPath   string `json:"cert_path"`
	APIVersion string `json:"api_version"`
	ConfigDir  string `json:"config_dir"`
}

// Values of configuration keys that choose among a few.
const (
	modeAuto   = "auto"
	modeAgent  = "agent"
	modeEngine = "engine"

	transportAuto   = "auto"
	transportSocket = "socket"
	transportStream = "stream"

	pullMissing = "missing"
	pullAlways  = "always"
	pullNever   = "never"
)

// engineConcurrency is how many engine execs run at once unless the configuration says otherwise:
// each costs the engine about 100 ms of processor time, so more only wait longer.
const engineConcurrency = 32

func defaultConfig() config {
	return config{
		Create: createConfig{
			KeepaliveShell:      "/bin/sh",
			KeepaliveCmd:        "while :; do sleep 3600; done",
			StartTimeoutS:       new(600.0),
			UseInit:             true,
			ApplyResourceLimits: true,
			PublishHost:         "127.0.0.1",
			OrphanTimeoutS:      60,
			HandoverTimeoutS:    3600,
			AgentTransport:      transportAuto,
			PullPolicy:          pullMissing,
		},
		Exec: execConfig{
			DefaultTimeoutS: new(180.0),
			Mode:            modeAuto,
			MaxOutputBytes:  256 << 20,
			KillGraceS:      0.5,
		},
		Probe: probeConfig{
			Command:        new("printf docker-sandbox-ready"),
			ExpectedStdout: new("docker-sandbox-ready"),
			TimeoutS:       new(30.0),
			StableCount:    1,
		},
	}
}

// loadConfig reads and checks a configuration block.
func loadConfig(raw json.RawMessage) (config, error) {
	c := defaultConfig()
	if err := core.DecodeConfig(raw, &c); err != nil {
		return c, core.WithSandbox(err, core.KindInvalid, "", providerName, "")
	}
	if err := c.validate(); err != nil {
		return c, &core.Error{Kind: core.KindInvalid, Provider: providerName, Err: err}
	}
	return c, nil
}

// validate reports the first value that makes no sense, by the key's name.
func (c *config) validate() error {
	addr, addrErr := netip.ParseAddr(c.Create.PublishHost)
	checks := []struct {
		ok      bool
		problem string
	}{
		{positive(c.Create.StartTimeoutS), "create.start_timeout_s must be > 0 or null"},
		{c.Create.PidsLimit == nil || *c.Create.PidsLimit > 0, "create.pids_limit must be > 0 or null"},
		{addrErr == nil && addr.Zone() == "", fmt.Sprintf("create.publish_host must be an IP address, not %q", c.Create.PublishHost)},
		{c.Create.KeepaliveShell != "", "create.keepalive_shell must not be empty"},
		{c.Create.OrphanTimeoutS >= 0, "create.orphan_timeout_s must be >= 0 (0: never)"},
		{c.Create.HandoverTimeoutS >= 0, "create.handover_timeout_s must be >= 0 (0: never)"},
		{positive(c.Exec.DefaultTimeoutS), "exec.default_timeout_s must be > 0 or null"},
		{c.Exec.Concurrency == nil || *c.Exec.Concurrency >= 1, "exec.concurrency must be >= 1"},
		{c.Exec.ExecShell == nil || *c.Exec.ExecShell != "", "exec.exec_shell must not be empty (null: choose one)"},
		{c.Exec.MaxOutputBytes >= 0, "exec.max_output_bytes must be >= 0 (0: no limit)"},
		{c.Exec.KillGraceS >= 0, "exec.kill_grace_s must be >= 0"},
		{c.Probe.Command == nil || positive(c.Probe.TimeoutS), "probe.timeout_s must be > 0 or null"},
		{positive(c.Probe.DeadlineS), "probe.deadline_s must be > 0 or null"},
		{c.Probe.StableCount >= 1, "probe.stable_count must be >= 1"},
		{c.Probe.StableDelayS >= 0, "probe.stable_delay_s must be >= 0"},
	}
	for _, check := range checks {
		if !check.ok {
			return fmt.Errorf("%s", check.problem)
		}
	}
	for _, choice := range []struct {
		key, value string
		allowed    []string
	}{
		{"create.agent_transport", c.Create.AgentTransport, []string{transportAuto, transportSocket, transportStream}},
		{"create.pull_policy", c.Create.PullPolicy, []string{pullMissing, pullAlways, pullNever}},
		{"exec.mode", c.Exec.Mode, []string{modeAuto, modeAgent, modeEngine}},
	} {
		if !slices.Contains(choice.allowed, choice.value) {
			return fmt.Errorf("%s must be one of %s, not %q", choice.key, strings.Join(choice.allowed, ", "), choice.value)
		}
	}
	if c.Create.Platform != "" {
		if _, err := parsePlatform(c.Create.Platform); err != nil {
			return err
		}
	}
	if len(c.Exec.ExtraExecArgs) > 0 && c.Exec.Mode == modeAgent {
		return fmt.Errorf("exec.extra_exec_args are flags of the engine's exec and can't be combined with exec.mode %q", modeAgent)
	}
	if _, err := parseExecArgs(c.Exec.ExtraExecArgs); err != nil {
		return fmt.Errorf("exec.extra_exec_args: %w", err)
	}
	if err := parseRunArgs(c.Create.ExtraRunArgs, &runArgs{}); err != nil {
		return fmt.Errorf("create.extra_run_args: %w", err)
	}
	return nil
}

func positive(v *float64) bool { return v == nil || *v > 0 }

// seconds turns a configured number into a duration; a fraction of a nanosecond is not worth an error.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// startTimeout is the bound on Create, 0 for none.
func (c *createConfig) startTimeout() time.Duration {
	if c.StartTimeoutS == nil {
		return 0
	}
	return seconds(*c.StartTimeoutS)
}
