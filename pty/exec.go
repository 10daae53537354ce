package pty

import (
	"context"
	"errors"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func (s *Session) Exec(ctx context.Context, command string) (core.PTYResult, error) {
	return core.PTYResult{}, errors.New("todo")
}
func (s *Session) RunDetached(ctx context.Context, command string, poll time.Duration) (core.PTYResult, error) {
	return core.PTYResult{}, errors.New("todo")
}
