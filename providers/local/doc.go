// Package local runs sandboxes on this machine, without a container engine.
//
// A sandbox is one agent process and what it starts. With bubblewrap it lives in
// namespaces of its own: it sees this machine's files read-only, and can write
// to its workspace and to a private /tmp, /var/tmp and /run. Without, which has
// to be asked for or is warned about, commands run with this process's rights.
//
// Isolation here keeps a command from damaging the machine by accident or
// mischief. It is not a wall against an attacker who means to read: files that
// this process may read, the sandbox may read too, except for the sockets below
// /run and the project's own state.
package local
