// Package agent is the host's side of the small daemon that runs inside every
// sandbox we start ourselves: how it is delivered (Binary, ServeConfig,
// HostDir) and how it is spoken to (Client). The daemon itself is in internal/daemon,
// its program in cmd/ngs-agent.
//
// A command costs a fork in the sandbox instead of a runtime exec, its whole
// process tree is killed on timeout and cancellation, and its output crosses no
// engine: where the sandbox runs on this host, pipes made here are passed to it.
package agent
