package agent

import "github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"

// Version is the protocol's version; library and agent must have the same.
const Version = wire.Version

// TokenLen is the length in bytes of the secret that both sides hold.
const TokenLen = wire.TokenLen

// ServeConfig is how the agent is started.
type ServeConfig = wire.ServeConfig

// ConnectArgs is the command line (behind the program's name) of the relay
// through which a client reaches the agent over an engine's exec.
func ConnectArgs(socket string) []string { return []string{"connect", socket} }
