package docker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	cliconfig "github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	"github.com/docker/cli/cli/connhelper"
	clicontext "github.com/docker/cli/cli/context"
	"github.com/docker/cli/cli/context/store"
	"github.com/docker/go-connections/tlsconfig"
)

const (
	defaultHost    = "unix:///var/run/docker.sock"
	defaultContext = "default"
	// endpointName is the engine's place in a stored context.
	endpointName = "docker"
	// dialTimeout bounds one connection attempt to the engine.
	dialTimeout = 10 * time.Second
)

// target is the engine that was chosen, and how to reach it.
type target struct {
	host   string // as people write it
	origin string // what chose it, for messages
	dial   func(ctx context.Context) (net.Conn, error)
	// url is what the client library is told; it only names the host in requests.
	url        string
	apiVersion string
	configDir  string // of the docker command: logins are kept there
}

// findTarget decides which engine is meant. What the configuration says comes
// first, then the environment, then the docker command's current context, then
// the default socket. It reads files but contacts nobody.
func findTarget(c connectionConfig, getenv func(string) string) (target, error) {
	dir := firstOf(c.ConfigDir, getenv("DOCKER_CONFIG"))
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			// Without a home there is no docker configuration; the default socket can still be used.
			home = "/"
		}
		dir = filepath.Join(home, ".docker")
	}
	t := target{configDir: dir, apiVersion: firstOf(c.APIVersion, getenv("DOCKER_API_VERSION"))}
	name := ""
	switch {
	case c.Host != "":
		t.host, t.origin = c.Host, "connection.host"
	case c.Context != "":
		name, t.origin = c.Context, "connection.context"
	case getenv("DOCKER_HOST") != "":
		t.host, t.origin = getenv("DOCKER_HOST"), "DOCKER_HOST"
	case getenv("DOCKER_CONTEXT") != "":
		name, t.origin = getenv("DOCKER_CONTEXT"), "DOCKER_CONTEXT"
	default:
		file, err := cliconfig.Load(dir)
		if err != nil {
			return t, fmt.Errorf("read docker's configuration in %s: %w", dir, err)
		}
		name, t.origin = file.CurrentContext, "docker's current context"
	}
	var tlsConfig *tls.Config
	var err error
	if name != "" && name != defaultContext {
		t.origin = fmt.Sprintf("%s %q", t.origin, name)
		t.host, tlsConfig, err = loadContext(dir, name)
	} else {
		switch {
		case t.host != "":
		case getenv("DOCKER_HOST") != "":
			t.host, t.origin = getenv("DOCKER_HOST"), "DOCKER_HOST"
		default:
			t.host, t.origin = defaultHost, "the default"
		}
		// Certificates are for the network; a socket or an ssh session needs none.
		if !strings.HasPrefix(t.host, "unix://") && !strings.HasPrefix(t.host, "ssh://") {
			tlsConfig, err = tlsFromFiles(c, getenv, dir)
		}
	}
	if err != nil {
		return t, err
	}
	return t, t.setDial(tlsConfig)
}

// withoutSecrets takes a password out of an address, also out of one that can't be parsed.
func withoutSecrets(host string) string {
	scheme, rest, _ := strings.Cut(host, "://")
	at := strings.LastIndexByte(rest, '@')
	if at < 0 {
		return host
	}
	user, _, _ := strings.Cut(rest[:at], ":")
	return scheme + "://" + user + rest[at:]
}

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// setDial prepares the way to the host. TLS is done while dialing, so that
// hijacked streams and plain requests take the same way, and both end with their context.
func (t *target) setDial(tlsConfig *tls.Config) error {
	helper, err := connhelper.GetConnectionHelper(t.host)
	var inURL *url.Error
	if errors.As(err, &inURL) { // its text repeats the address, with a password that is in it
		err = errors.New("it is not a URL")
	}
	if err != nil {
		return fmt.Errorf("docker host %q (from %s): %w", withoutSecrets(t.host), t.origin, err)
	}
	if helper != nil {
		t.url = helper.Host
		t.dial = func(ctx context.Context) (net.Conn, error) {
			// The helper ties its ssh process to the context; the connection must outlive the request that opened it.
			return helper.Dialer(context.WithoutCancel(ctx), "", "")
		}
		return nil
	}
	proto, addr, ok := strings.Cut(t.host, "://")
	if !ok || addr == "" {
		return fmt.Errorf("docker host %q (from %s) is no address; write unix:///path, tcp://host:port or ssh://user@host", withoutSecrets(t.host), t.origin)
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}
	t.url = t.host
	switch proto {
	case "unix":
		t.dial = func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "unix", addr) }
	case "tcp", "http", "https":
		u, err := url.Parse("tcp://" + addr)
		if err != nil || u.Host == "" {
			return fmt.Errorf("docker host %q (from %s) is no address; write tcp://host:port", withoutSecrets(t.host), t.origin)
		}
		t.url = "tcp://" + addr
		hostPort := u.Host
		if tlsConfig == nil && proto == "https" {
			tlsConfig = tlsconfig.ClientDefault()
		}
		if u.Port() == "" {
			port := "2375"
			if tlsConfig != nil {
				port = "2376"
			}
			hostPort = net.JoinHostPort(u.Hostname(), port)
		}
		if tlsConfig == nil {
			t.dial = func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", hostPort) }
			return nil
		}
		secure := &tls.Dialer{NetDialer: dialer, Config: tlsConfig}
		t.dial = func(ctx context.Context) (net.Conn, error) { return secure.DialContext(ctx, "tcp", hostPort) }
	default:
		return fmt.Errorf("docker host %q (from %s): the scheme %q is not supported; use unix, tcp or ssh", withoutSecrets(t.host), t.origin, proto)
	}
	return nil
}

// loadContext reads an engine's address and certificates from docker's context store.
func loadContext(configDir, name string) (string, *tls.Config, error) {
	contexts := store.New(filepath.Join(configDir, "contexts"), store.NewConfig(
		func() any { return &map[string]any{} },
		store.EndpointTypeGetter(endpointName, func() any { return &clicontext.EndpointMetaBase{} }),
	))
	meta, err := contexts.GetMetadata(name)
	if err != nil {
		return "", nil, fmt.Errorf("docker context %q: %w (docker context ls shows what there is)", name, err)
	}
	endpoint, ok := meta.Endpoints[endpointName].(clicontext.EndpointMetaBase)
	if !ok || endpoint.Host == "" {
		return "", nil, fmt.Errorf("docker context %q names no engine", name)
	}
	data, err := clicontext.LoadTLSData(contexts, name, endpointName)
	if err != nil {
		return "", nil, fmt.Errorf("docker context %q: %w", name, err)
	}
	if data == nil && !endpoint.SkipTLSVerify {
		return endpoint.Host, nil, nil
	}
	cfg := tlsconfig.ClientDefault()
	cfg.InsecureSkipVerify = endpoint.SkipTLSVerify
	if data != nil && data.CA != nil {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(data.CA) {
			return "", nil, fmt.Errorf("docker context %q: its ca.pem holds no certificate", name)
		}
	}
	if data != nil && data.Cert != nil && data.Key != nil {
		pair, err := tls.X509KeyPair(data.Cert, data.Key)
		if err != nil {
			return "", nil, fmt.Errorf("docker context %q: %w", name, err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return endpoint.Host, cfg, nil
}

// tlsFromFiles is TLS as the environment asks for it: a directory with ca.pem,
// cert.pem and key.pem, and whether the engine's certificate is checked. nil means none.
func tlsFromFiles(c connectionConfig, getenv func(string) string, configDir string) (*tls.Config, error) {
	verify := getenv("DOCKER_TLS_VERIFY") != ""
	if c.TLSVerify != nil {
		verify = *c.TLSVerify
	}
	dir := firstOf(c.CertPath, getenv("DOCKER_CERT_PATH"))
	if dir == "" {
		if !verify {
			return nil, nil
		}
		dir = configDir
	}
	options := tlsconfig.Options{
		CAFile:             filepath.Join(dir, "ca.pem"),
		CertFile:           filepath.Join(dir, "cert.pem"),
		KeyFile:            filepath.Join(dir, "key.pem"),
		InsecureSkipVerify: !verify,
		ExclusiveRootPools: true,
	}
	cfg, err := tlsconfig.Client(options)
	if err != nil {
		return nil, fmt.Errorf("certificates for the engine in %s: %w", dir, err)
	}
	return cfg, nil
}

// logins reads what the docker command knows about registries.
func (t *target) logins() (*configfile.ConfigFile, error) {
	file, err := cliconfig.Load(t.configDir)
	if err != nil {
		return nil, fmt.Errorf("read docker's configuration in %s: %w", t.configDir, err)
	}
	return file, nil
}

// explain says why an engine can't be reached and what to do. It tries once
// more to connect, because the client library forgets the cause.
func (t *target) explain(ctx context.Context, cause error) error {
	conn, err := t.dial(ctx)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("the Docker engine at %s (from %s) broke the connection: %w", withoutSecrets(t.host), t.origin, cause)
	}
	what := fmt.Sprintf("no Docker engine at %s (from %s)", withoutSecrets(t.host), t.origin)
	switch {
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("permission denied on the Docker engine's socket %s (from %s): let this user into the group that owns it, or set DOCKER_HOST to an engine of your own: %w", withoutSecrets(t.host), t.origin, err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s: the socket does not exist; start Docker, or set DOCKER_HOST or connection.host: %w", what, err)
	default:
		return fmt.Errorf("%s: %w; start Docker, or set DOCKER_HOST or connection.host", what, err)
	}
}
