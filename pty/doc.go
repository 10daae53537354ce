// Package pty is the client of terminal sessions: processes in a sandbox with a
// terminal, or three pipes, that outlive the connection through which they are used.
//
// The protocol is an HTTP service that makes sessions and a websocket for each
// (see internal/proto); it is spoken by the agent that runs in our sandboxes
// (package ptyserver) and by others. A session's output is counted in bytes from its
// beginning, its end is retained on the server's side, and a client that comes
// back asks for what it has not seen.
package pty
