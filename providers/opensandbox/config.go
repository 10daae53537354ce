package opensandbox

import (
	"fmt"
	"math"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"encoding/json"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// config is the provider's configuration block. Pointers are fields for which null
// says something of its own: no limit, no check, or "look it up".
type config struct {
	Connection          connectionConfig   `json:"connection"`
	Create              createConfig       `json:"create"`
	Probe               probeConfig        `json:"probe"`
	Operations          operationsConfig   `json:"operations"`
	Attribution         attributionConfig  `json:"attribution"`
	Networking          networkingConfig   `json:"networking"`
	SharedStorage       storageConfig      `json:"shared_storage"`
	RuntimeRequirements requirementsConfig `json:"runtime_requirements"`
}

// connectionConfig says where the server is and how it is spoken to.
type connectionConfig struct {
	Domain                   *string  `json:"domain"`            // host[:port][/prefix], or a URL; null: $OPEN_SANDBOX_DOMAIN, else localhost:8080
	APIKey                   *string  `json:"api_key"`           // null: $OPEN_SANDBOX_API_KEY
	Protocol                 *string  `json:"protocol"`          // http or https; null: the domain's scheme, else http
	RequestTimeoutS          *float64 `json:"request_timeout_s"` // per request, and the longest silence of an answer; null: 30
	UseServerProxy           bool     `json:"use_server_proxy"`  // reach sandboxes through the server
	DisableConnectionPooling bool     `json:"disable_connection_pooling"`
	KeepaliveExpiryS         float64  `json:"keepalive_expiry_s"`        // an unused connection is closed after that
	MaxKeepaliveConnections  int      `json:"max_keepalive_connections"` // unused connections kept
	MaxConnections           int      `json:"max_connections"`           // per host, with transport_backend httpx
	ConnectRetries           int      `json:"connect_retries"`           // of a connection that can't be made, with transport_backend httpx
	TransportBackend         string   `json:"transport_backend"`         // aiohttp or httpx: which limits apply
	TLSVerify                bool     `json:"tls_verify"`
}

// createConfig says how sandboxes are made.
type createConfig struct {
	RequestTimeoutS        *float64 `json:"request_timeout_s"` // of the request that makes one; null: as the connection says
	TimeoutS               *float64 `json:"timeout_s"`         // for one attempt with all that belongs to it
	Retries                int      `json:"retries"`
	RetryDelayS            float64  `json:"retry_delay_s"`
	RetryMaxDelayS         float64  `json:"retry_max_delay_s"`
	ImagePullPolicy        *string  `json:"image_pull_policy"` // null: the server's own
	SkipHealthCheck        bool     `json:"skip_health_check"`
	ConnectAttemptTimeoutS float64  `json:"connect_attempt_timeout_s"`
	ConnectPollS           float64  `json:"connect_poll_s"`
	RenewIntervalS         *float64 `json:"renew_interval_s"` // prolong the sandbox's life so often while we hold it
}

// probeConfig says when a new sandbox counts as ready.
type probeConfig struct {
	Command        *string  `json:"command"` // null: none
	ExpectedStdout *string  `json:"expected_stdout"`
	TimeoutS       *float64 `json:"timeout_s"`  // per try
	DeadlineS      *float64 `json:"deadline_s"` // null: timeout_s
	StableCount    int      `json:"stable_count"`
	StableDelayS   float64  `json:"stable_delay_s"`
	User           userName `json:"user"`
}

// operationsConfig says how requests about a running sandbox are made.
type operationsConfig struct {
	Retries                 int      `json:"retries"`
	RetryDelayS             float64  `json:"retry_delay_s"`
	RetryMaxDelayS          float64  `json:"retry_max_delay_s"`
	CommandRetries          int      `json:"command_retries"` // of a command whose fate is unknown: it may run twice
	CloseTimeoutS           *float64 `json:"close_timeout_s"`
	PauseResumeTimeoutS     float64  `json:"pause_resume_timeout_s"`
	BackgroundExec          bool     `json:"background_exec"`
	BackgroundPollInitialS  float64  `json:"background_poll_initial_s"`
	BackgroundPollIntervalS float64  `json:"background_poll_interval_s"`
	StatusPollTimeoutS      *float64 `json:"status_poll_timeout_s"` // null: as the connection says
}

// attributionConfig says whose sandboxes these are.
type attributionConfig struct {
	Enabled   bool    `json:"enabled"`
	Team      *string `json:"team"`
	User      *string `json:"user"`
	Workload  *string `json:"workload"`
	Run       *string `json:"run"`
	KeyPrefix string  `json:"key_prefix"`
}

// networkingConfig switches on what connects sandboxes with each other.
type networkingConfig struct {
	Enabled            bool    `json:"enabled"`
	LoopbackForwarding bool    `json:"loopback_forwarding"`
	PythonExecutable   string  `json:"python_executable"`
	SetupCommand       *string `json:"setup_command"`
}

// storageConfig names a folder of the server's hosts that sandboxes can share.
type storageConfig struct {
	HostPath *string           `json:"host_path"`
	Metadata map[string]string `json:"metadata"`
}

// requirementsConfig says how a sandbox shows what it can do.
type requirementsConfig struct {
	CapabilityProbes   map[string]string            `json:"capability_probes"`
	CapabilityMetadata map[string]map[string]string `json:"capability_metadata"`
	ShmSizeMetadataKey *string                      `json:"shm_size_metadata_key"`
}

// userName is a user's name or number.
type userName string

// UnmarshalJSON implements json.Unmarshaler.
func (u *userName) UnmarshalJSON(p []byte) error {
	var v any
	if err := json.Unmarshal(p, &v); err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		*u = ""
	case string:
		*u = userName(v)
	case float64:
		if v != math.Trunc(v) || v < 0 {
			return fmt.Errorf("a user is a name or a number, not %g", v)
		}
		*u = userName(fmt.Sprintf("%.0f", v))
	default:
		return fmt.Errorf("a user is a name or a number, not %s", p)
	}
	return nil
}

const (
	backendAiohttp = "aiohttp"
	backendHTTPX   = "httpx"

	defaultDomain    = "localhost:8080"
	defaultKeyPrefix = "nemo-gym.nvidia.com/"
	readyText        = "nemo-gym-sandbox-ready"

	envDomain = "OPEN_SANDBOX_DOMAIN"
	envAPIKey = "OPEN_SANDBOX_API_KEY"
)

var pullPolicies = []string{"Always", "IfNotPresent", "Never"}

func defaultConfig() config {
	return config{
		Connection: connectionConfig{
			KeepaliveExpiryS: 3, MaxKeepaliveConnections: 20, MaxConnections: 100, ConnectRetries: 2, TransportBackend: backendAiohttp,
		},
		Create: createConfig{
			Retries: 2, RetryDelayS: 5, RetryMaxDelayS: 60, ImagePullPolicy: new("IfNotPresent"), ConnectAttemptTimeoutS: 30, ConnectPollS: 2,
		},
		Probe: probeConfig{
			Command: new("printf " + readyText), ExpectedStdout: new(readyText), TimeoutS: new(30.0), StableCount: 1,
		},
		Operations: operationsConfig{
			Retries: 3, RetryDelayS: 1, RetryMaxDelayS: 15, CloseTimeoutS: new(30.0), PauseResumeTimeoutS: 600,
			BackgroundPollInitialS: 0.25, BackgroundPollIntervalS: 2, StatusPollTimeoutS: new(10.0),
		},
		Attribution: attributionConfig{Enabled: true, KeyPrefix: defaultKeyPrefix},
		Networking:  networkingConfig{PythonExecutable: "python3"},
	}
}

// loadConfig reads and checks a configuration block, and settles where the server is.
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
	if err := c.Connection.settle(os.Getenv); err != nil {
		return err
	}
	conn, create, probe, ops := &c.Connection, &c.Create, &c.Probe, &c.Operations
	for _, check := range []struct {
		ok      bool
		problem string
	}{
		{positive(conn.RequestTimeoutS), "connection.request_timeout_s must be > 0 or null"},
		{conn.KeepaliveExpiryS >= 0, "connection.keepalive_expiry_s must be >= 0"},
		{conn.MaxKeepaliveConnections >= 0, "connection.max_keepalive_connections must be >= 0"},
		{conn.MaxConnections >= 1, "connection.max_connections must be >= 1"},
		{conn.ConnectRetries >= 0, "connection.connect_retries must be >= 0"},
		{slices.Contains([]string{backendAiohttp, backendHTTPX}, conn.TransportBackend), "connection.transport_backend must be aiohttp or httpx"},
		{positive(create.RequestTimeoutS), "create.request_timeout_s must be > 0 or null"},
		{positive(create.TimeoutS), "create.timeout_s must be > 0 or null"},
		{create.Retries >= 0, "create.retries must be >= 0"},
		{create.RetryDelayS >= 0, "create.retry_delay_s must be >= 0"},
		{create.RetryMaxDelayS >= 0, "create.retry_max_delay_s must be >= 0"},
		{create.ImagePullPolicy == nil || slices.Contains(pullPolicies, *create.ImagePullPolicy), "create.image_pull_policy must be one of: " + strings.Join(pullPolicies, ", ")},
		{create.ConnectAttemptTimeoutS > 0, "create.connect_attempt_timeout_s must be > 0"},
		{create.ConnectPollS > 0, "create.connect_poll_s must be > 0"},
		{positive(create.RenewIntervalS), "create.renew_interval_s must be finite and > 0"},
		{probe.Command == nil || positive(probe.TimeoutS), "probe.timeout_s must be > 0 or null"},
		{positive(probe.DeadlineS), "probe.deadline_s must be > 0 or null"},
		{probe.StableCount >= 1, "probe.stable_count must be >= 1"},
		{probe.StableDelayS >= 0, "probe.stable_delay_s must be >= 0"},
		{ops.Retries >= 0, "operations.retries must be >= 0"},
		{ops.RetryDelayS >= 0, "operations.retry_delay_s must be >= 0"},
		{ops.RetryMaxDelayS >= 0, "operations.retry_max_delay_s must be >= 0"},
		{ops.CommandRetries >= 0, "operations.command_retries must be >= 0"},
		{positive(ops.CloseTimeoutS), "operations.close_timeout_s must be > 0 or null"},
		{ops.PauseResumeTimeoutS > 0, "operations.pause_resume_timeout_s must be > 0"},
		{ops.BackgroundPollInitialS > 0, "operations.background_poll_initial_s must be > 0"},
		{ops.BackgroundPollIntervalS > 0, "operations.background_poll_interval_s must be > 0"},
		{positive(ops.StatusPollTimeoutS), "operations.status_poll_timeout_s must be > 0 or null"},
		{!c.Networking.Enabled || c.Networking.PythonExecutable != "", "networking.python_executable must not be empty"},
	} {
		if !check.ok {
			return fmt.Errorf("%s", check.problem)
		}
	}
	return c.Attribution.settle()
}

// settle fills in what the environment says and splits a URL given as the domain.
func (c *connectionConfig) settle(getenv func(string) string) error {
	domain := getenv(envDomain)
	if c.Domain != nil && strings.TrimSpace(*c.Domain) != "" {
		domain = *c.Domain
	}
	domain = strings.TrimSpace(domain)
	if domain == "" {
		domain = defaultDomain
	}
	protocol := "http"
	if c.Protocol != nil {
		protocol = strings.TrimSpace(*c.Protocol)
	}
	if scheme, rest, ok := strings.Cut(domain, "://"); ok {
		protocol, domain = strings.ToLower(scheme), rest
	}
	if protocol != "http" && protocol != "https" {
		return fmt.Errorf("connection.domain and connection.protocol: the protocol must be http or https, not %q", protocol)
	}
	domain = strings.TrimRight(domain, "/")
	u, err := url.Parse(protocol + "://" + domain)
	switch {
	case err != nil:
		return fmt.Errorf("connection.domain %q is no host[:port][/prefix]", domain)
	case u.Hostname() == "" || u.User != nil:
		return fmt.Errorf("connection.domain %q must name a host, and nothing before it", domain)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(domain, "#"):
		return fmt.Errorf("connection.domain %q must not have a query or a fragment", domain)
	}
	c.Domain, c.Protocol = &domain, &protocol
	if c.APIKey == nil {
		c.APIKey = new(getenv(envAPIKey))
	}
	if strings.ContainsFunc(*c.APIKey, unicode.IsControl) { // its text must not be shown
		return fmt.Errorf("connection.api_key, or $%s, has a control character in it, such as a line's end", envAPIKey)
	}
	return nil
}

var dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// settle brings the prefix into the form that keys are made with.
func (a *attributionConfig) settle() error {
	prefix := strings.TrimRight(strings.TrimSpace(a.KeyPrefix), "/")
	if prefix == "" {
		a.KeyPrefix = ""
		return nil
	}
	if len(prefix) > 253 || !dnsSubdomain.MatchString(prefix) {
		return fmt.Errorf("attribution.key_prefix %q must be a lowercase DNS subdomain or empty", a.KeyPrefix)
	}
	a.KeyPrefix = prefix + "/"
	return nil
}

func positive(v *float64) bool { return v == nil || *v > 0 && !math.IsInf(*v, 0) }

// seconds turns a configured number into a duration.
func seconds(s float64) time.Duration {
	if s >= float64(math.MaxInt64)/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(s * float64(time.Second))
}

// orSeconds is seconds with a default for null.
func orSeconds(s *float64, otherwise time.Duration) time.Duration {
	if s == nil {
		return otherwise
	}
	return seconds(*s)
}

// base is where the server's routes begin.
func (c *connectionConfig) base() string { return *c.Protocol + "://" + *c.Domain }

// requestTimeout bounds one request that says nothing else.
func (c *connectionConfig) requestTimeout() time.Duration {
	return orSeconds(c.RequestTimeoutS, 30*time.Second)
}
