package execd

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
)

// Variables by which a sandbox configures its daemon.
const (
	varToken = "EXECD_ACCESS_TOKEN"
	varGrace = "EXECD_API_GRACE_SHUTDOWN"
	varEnvs  = "EXECD_ENVS"
)

// defaultPort is where everybody expects the daemon.
const defaultPort = 44772

// Config says how the daemon serves.
type Config struct {
	Port    int
	Token   string        // "" lets everybody in
	Grace   time.Duration // how long a command's stream stays open behind its final event
	EnvFile string        // KEY=VALUE lines for every command, read each time
	Env     []string      // what commands start from
}

// ParseConfig reads the arguments behind the program's or the subcommand's name, and the environment.
func ParseConfig(args, environ []string) (Config, error) {
	cfg := Config{Port: defaultPort}
	fs := flag.NewFlagSet("execd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.IntVar(&cfg.Port, "port", cfg.Port, "TCP port to listen on")
	fs.StringVar(&cfg.Token, "access-token", "", "what requests have to carry as "+tokenHeader)
	fs.DurationVar(&cfg.Grace, "graceful-shutdown-timeout", 0, "pause behind the last event of a command")
	// Taken so that whoever starts the other daemon with them can start this one; there is nothing that they could mean here.
	for _, name := range []string{"log-level", "jupyter-host", "jupyter-token"} {
		fs.String(name, "", "ignored")
	}
	if grace := process.LookupEnv(environ, varGrace); grace != "" {
		d, err := time.ParseDuration(grace)
		if err != nil {
			return Config{}, fmt.Errorf("%s: %w; give a duration such as 500ms", varGrace, err)
		}
		cfg.Grace = d
	}
	if err := fs.Parse(args); err != nil {
		return Config{}, fmt.Errorf("%w; usage: execd [--port N] [--access-token TOKEN] [--graceful-shutdown-timeout DURATION]", err)
	}
	if fs.NArg() > 0 {
		return Config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if cfg.Port < 0 || cfg.Port > 1<<16-1 {
		return Config{}, fmt.Errorf("port %d is not between 0 and 65535", cfg.Port)
	}
	if cfg.Token == "" {
		cfg.Token = process.LookupEnv(environ, varToken)
	}
	cfg.EnvFile = process.LookupEnv(environ, varEnvs)
	for _, kv := range environ {
		if name, _, _ := strings.Cut(kv, "="); name != varToken {
			cfg.Env = append(cfg.Env, kv)
		}
	}
	if process.LookupEnv(cfg.Env, "PATH") == "" {
		cfg.Env = append(cfg.Env, "PATH="+process.DefaultPath)
	}
	return cfg, nil
}

// environ is a command's environment: the daemon's, then the file's, then the call's.
func (s *Server) environ(call map[string]string) []string {
	set := map[string]string{}
	var order []string
	put := func(name, value string) {
		if _, known := set[name]; !known {
			order = append(order, name)
		}
		set[name] = value
	}
	for _, kv := range s.cfg.Env {
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			put(name, value)
		}
	}
	for name, value := range s.fileEnv(set) {
		put(name, value)
	}
	for name, value := range call {
		put(name, value)
	}
	env := make([]string, 0, len(order))
	for _, name := range order {
		env = append(env, name+"="+set[name])
	}
	return env
}

// maxEnvFile bounds what is read of the file: the kernel takes no larger environment.
const maxEnvFile = 4 << 20

// fileEnv reads the file of variables; no file is no variables.
func (s *Server) fileEnv(known map[string]string) map[string]string {
	if s.cfg.EnvFile == "" {
		return nil
	}
	f, err := os.Open(s.cfg.EnvFile)
	if err != nil {
		return nil
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxEnvFile))
	if err != nil {
		return nil
	}
	env := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.HasPrefix(line, "#") {
			continue
		}
		env[name] = os.Expand(value, func(v string) string {
			if x, ok := env[v]; ok {
				return x
			}
			return known[v]
		})
	}
	return env
}
