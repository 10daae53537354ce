package core

import (
	"context"
	"time"
)

// Provider makes sandboxes on one backend. It is safe for concurrent use.
type Provider interface {
	// Name is the backend's registered name.
	Name() string
	// Create makes a sandbox that is ready to run commands. When it fails or ctx
	// ends it leaves nothing behind. The spec has been validated.
	Create(ctx context.Context, spec Spec) (Instance, error)
	// Close releases what the provider holds (connections, goroutines). Sandboxes live on.
	Close(ctx context.Context) error
}

// Instance is one running sandbox. It is safe for concurrent use. What only some
// backends can do is a capability, found by type assertion.
type Instance interface {
	// ID names the sandbox, for people and for connecting from another process.
	ID() string
	// Exec runs one command and returns when it has ended and its output is in
	// the sink. Failures of the sandbox are results; the error is for requests
	// that could not be served at all (invalid, canceled). When ctx ends, the
	// command's process tree is killed before Exec returns, bounded in time.
	Exec(ctx context.Context, req ExecRequest, sink Sink) (ExecResult, error)
	// Upload copies a local file into the sandbox, Download the other way.
	Upload(ctx context.Context, localPath, remotePath string) error
	Download(ctx context.Context, remotePath, localPath string) error
	// Status asks the backend.
	Status(ctx context.Context) (Status, error)
	// Destroy ends the sandbox and everything in it. A sandbox that is already gone is success.
	Destroy(ctx context.Context) error
	// Detach releases this process's hold on the sandbox without ending it. Idempotent.
	Detach()
}

// Defaults are what commands get that do not say otherwise.
type Defaults struct {
	User    string
	Workdir string
}

// DefaultsKeeper is an Instance that itself knows the defaults of the sandbox, for
// what they decide beside commands: whom an uploaded file belongs to, and where a relative path begins.
type DefaultsKeeper interface {
	// KeepDefaults replaces them; an empty field is the sandbox's own default again.
	KeepDefaults(ctx context.Context, d Defaults) error
}

// Connector is a Provider whose sandboxes another process can take up.
type Connector interface {
	// Serialize describes an instance so that Connect can find it, also in another process.
	// The description holds no secret. It keeps the sandbox alive past its creator's end
	// for the handover time.
	Serialize(ctx context.Context, in Instance, scope string, defaults Defaults) (map[string]any, error)
	// Connect finds the sandbox and the defaults it was serialized with.
	Connect(ctx context.Context, descriptor map[string]any) (Instance, Defaults, error)
}

// Pauser is an Instance whose processes can be stopped and continued in place.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// Endpoint is a route to a service inside a sandbox.
type Endpoint struct {
	URL     string
	Headers map[string]string
}

// EndpointResolver is an Instance that can route to a port of its spec.
type EndpointResolver interface {
	Endpoint(ctx context.Context, port int) (Endpoint, error)
}

// DefaultTimeouter is a Provider with its own default for commands; others use DefaultExecTimeout.
type DefaultTimeouter interface {
	DefaultExecTimeout() time.Duration
}

// DefaultExecTimeout bounds a command that gives no timeout of its own.
const DefaultExecTimeout = 180 * time.Second

// OutputLimiter is a Provider that limits how much of a stream a collecting caller keeps.
type OutputLimiter interface {
	// MaxOutputBytes is the limit per stream in bytes; 0 means no limit.
	MaxOutputBytes() int64
}
