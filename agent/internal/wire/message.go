package wire

// Ops of a request.
const (
	OpExec     = "exec"
	OpPresence = "presence" // stays open as the client's sign of life; the sandbox's main process starts with the first
	OpUpload   = "upload"
	OpDownload = "download"
	OpWrite    = "write"    // several small files in one operation, their bytes one after the other in frames
	OpDefaults = "defaults" // set what commands get that do not say otherwise
	OpHandover = "handover" // keep the sandbox longer after the last client left
	OpFreeze   = "freeze"   // stop all processes but the agent
	OpThaw     = "thaw"
	OpShutdown = "shutdown"
	OpHTTP     = "http" // from here on the stream carries HTTP: the service of terminal sessions
)

// Req begins an operation.
type Req struct {
	Op       string    `json:"op"`
	Deadline int64     `json:"deadline,omitempty"` // by the agent's clock, unix nanoseconds: refused when it has passed
	FDs      int       `json:"fds,omitempty"`      // descriptors that come with this frame
	Exec     *Exec     `json:"exec,omitempty"`
	File     *File     `json:"file,omitempty"`
	Files    []File    `json:"files,omitempty"`
	Defaults *Defaults `json:"defaults,omitempty"`
}

// Exec is a command. With descriptors passed they are stdout, stderr and, when
// Stdin is set, stdin; otherwise the bytes go in frames.
type Exec struct {
	Command   string            `json:"command,omitempty"`
	Argv      []string          `json:"argv,omitempty"`
	Cwd       string            `json:"cwd,omitempty"`
	Env       map[string]string `json:"env,omitempty"`
	User      string            `json:"user,omitempty"`
	TimeoutNS int64             `json:"timeout_ns,omitempty"`
	Stdin     bool              `json:"stdin,omitempty"`
	// Keep leaves processes that the command started alone when it times out or is cancelled.
	Keep bool `json:"keep,omitempty"`
}

// File is the file of an upload or download.
type File struct {
	Path string `json:"path"`
	Mode uint32 `json:"mode,omitempty"`
	Size int64  `json:"size,omitempty"`
}

// FileMeta precedes the bytes of a download.
type FileMeta struct {
	Size int64  `json:"size"`
	Mode uint32 `json:"mode"`
}

// Defaults are what commands get that do not say otherwise.
type Defaults struct {
	User    string `json:"user,omitempty"`
	Workdir string `json:"workdir,omitempty"`
}

// Res ends an operation.
type Res struct {
	// Error is why the operation failed, "" when it did not; Kind classifies it.
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"`

	Code      int    `json:"code,omitempty"`
	TimedOut  bool   `json:"timed_out,omitempty"`
	Cancelled bool   `json:"cancelled,omitempty"`
	OOM       bool   `json:"oom,omitempty"`     // the kernel killed a process for memory while the command ran
	Message   string `json:"message,omitempty"` // for stderr: what a shell would have said
	Size      int64  `json:"size,omitempty"`    // bytes of a file
	Info      *Info  `json:"info,omitempty"`
}

// Kinds of a failed operation.
const (
	KindCwd      = "cwd"
	KindUser     = "user"
	KindShell    = "shell"
	KindStart    = "start"
	KindLate     = "late"
	KindNotFound = "not_found"
	KindInvalid  = "invalid"
	KindIO       = "io"
	KindInternal = "internal"
)

// Info is the answer to OpPresence.
type Info struct {
	Version  int      `json:"version"`
	PID      int      `json:"pid"`
	Hostname string   `json:"hostname"`
	Shell    string   `json:"shell"`
	Defaults Defaults `json:"defaults"`
}

// Goodbye tells why the sandbox ends.
type Goodbye struct {
	Reason string `json:"reason"`
}
