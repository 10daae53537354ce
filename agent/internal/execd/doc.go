// Package execd lets the agent be the daemon that OpenSandbox puts into its
// sandboxes: the same routes, bodies, events and status codes under the same port,
// so that a control plane, an SDK or a proxy that knows that daemon can use this one.
//
// Where that daemon is known to fail its callers, this one does not:
//
//   - What a command printed is told before its end is, in all modes: nothing of a tail gets lost.
//   - A stream ends with its final event. EXECD_API_GRACE_SHUTDOWN brings back the pause behind it.
//   - Output is told when it is printed, not when a file is looked at next.
//   - The output of processes that outlive their command is taken and dropped, so that
//     they neither block nor get SIGPIPE.
//   - An attach to a terminal session whose process has ended replays what is retained and tells the
//     exit code again. It never starts the command a second time.
//   - Commands have default signal dispositions, however this process was started: Ctrl-C works under a
//     shell that started the daemon with "&".
//   - A command may be of any length.
//   - A command can be asked for from the moment that its id was told.
//   - Nothing is left in the sandbox's temporary folder, and logs do not depend on it. Logs and
//     records of commands that have ended are kept up to a number and an age.
//   - An upload is there whole or not at all.
//   - The access token is not in the environment of commands, nor sent on to what listens in the sandbox.
//
// There is no code interpreter: what belongs to it is answered with NOT_SUPPORTED at once.
package execd
