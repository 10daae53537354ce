package core

import "context"

// Sidecars is an Instance with further process environments beside it, as its
// spec asked for. They start and end with the sandbox.
type Sidecars interface {
	// SidecarExec runs a command in a sidecar; see Instance.Exec. Images of
	// sidecars need not have a shell, so it is usually an argv.
	SidecarExec(ctx context.Context, name string, req ExecRequest, sink Sink) (ExecResult, error)
	// SidecarDownload copies a file of a sidecar to a local path.
	SidecarDownload(ctx context.Context, name, remotePath, localPath string) error
}

// SidecarExec runs a command in the named sidecar. The sandbox's default user and directory are not the sidecar's.
func (s *Sandbox) SidecarExec(ctx context.Context, name string, req ExecRequest, sink Sink) (ExecResult, error) {
	side, inst, err := s.sidecars("sidecar exec")
	if err != nil {
		return ExecResult{}, err
	}
	if err := req.Validate(); err != nil {
		return ExecResult{}, WithSandbox(err, KindInvalid, "sidecar exec", s.provider.Name(), inst.ID())
	}
	if req.Timeout == 0 {
		req.Timeout = s.defaultTimeout()
	}
	if sink == nil {
		sink = Discard
	}
	res, err := side.SidecarExec(ctx, name, req, sink)
	return res, WithSandbox(err, KindSandbox, "sidecar exec", s.provider.Name(), inst.ID())
}

// SidecarDownload copies a file of the named sidecar to a local path.
func (s *Sandbox) SidecarDownload(ctx context.Context, name, remotePath, localPath string) error {
	side, inst, err := s.sidecars("sidecar download")
	if err != nil {
		return err
	}
	return WithSandbox(side.SidecarDownload(ctx, name, remotePath, localPath), KindSandbox, "sidecar download", s.provider.Name(), inst.ID())
}

func (s *Sandbox) sidecars(op string) (Sidecars, Instance, error) {
	inst, _, err := s.running(op)
	if err != nil {
		return nil, nil, err
	}
	side, ok := inst.(Sidecars)
	if !ok {
		return nil, nil, Errorf(KindNotSupported, op, "provider %s does not support sidecars", s.provider.Name())
	}
	return side, inst, nil
}
