// Command ngs-agent runs inside a sandbox. "serve" is the agent, "connect" a
// relay by which a client reaches it through an exec of a remote engine. "execd",
// which may also be the name of the program, is the daemon of an OpenSandbox.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/daemon"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/execd"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/relay"
	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
)

func main() {
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "execd" {
		args = append([]string{"execd"}, args...)
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ngs-agent:", err)
	}
	os.Exit(code)
}

func run(args []string) (int, error) {
	if len(args) == 0 {
		return 2, fmt.Errorf("usage: ngs-agent serve ... | execd ... | connect SOCKET")
	}
	switch args[0] {
	case "serve":
		cfg, err := wire.ParseServe(args[1:])
		if err != nil {
			return 2, err
		}
		return daemon.Run(cfg)
	case "execd":
		cfg, err := execd.ParseConfig(args[1:], os.Environ())
		if err != nil {
			return 2, err
		}
		return execd.Run(cfg)
	case "connect":
		if len(args) != 2 {
			return 2, fmt.Errorf("usage: ngs-agent connect SOCKET")
		}
		return 0, relay.Run(os.Stdin, os.Stdout, args[1])
	default:
		return 2, fmt.Errorf("unknown command %q", args[0])
	}
}
