package daemon

import (
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/process"
)

// baseEnv splits the agent's environment into what every command gets and the
// HOME that was chosen for all users, if it was.
func baseEnv(env []string, keepHome bool) (base []string, home string) {
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok:
		case name == "HOME":
			if keepHome {
				home = value
			}
		default:
			base = append(base, kv)
		}
	}
	if process.LookupEnv(base, "PATH") == "" {
		base = append(base, "PATH="+process.DefaultPath)
	}
	return base, home
}

// environ is a command's environment: the sandbox's, then the user's home, then the call's.
func (s *server) environ(who process.Identity, call map[string]string, tag string) []string {
	env := make([]string, 0, len(s.base)+len(call)+2)
	for _, kv := range s.base {
		name, _, _ := strings.Cut(kv, "=")
		if _, over := call[name]; !over {
			env = append(env, kv)
		}
	}
	if _, over := call["HOME"]; !over {
		home := s.home
		if home == "" {
			home = who.Home
		}
		env = append(env, "HOME="+home)
	}
	for k, v := range call {
		env = append(env, k+"="+v)
	}
	if tag != "" {
		env = append(env, tag)
	}
	return env
}
