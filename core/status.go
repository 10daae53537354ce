package core

// Status is the provider-neutral state of a sandbox.
type Status string

// The states. Unknown means that the backend could not be asked.
const (
	StatusStarting Status = "starting"
	StatusRunning  Status = "running"
	StatusPaused   Status = "paused"
	StatusStopped  Status = "stopped"
	StatusError    Status = "error"
	StatusUnknown  Status = "unknown"
)
