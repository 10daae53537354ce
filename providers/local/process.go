package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// process is the root of a sandbox that this process started: the agent itself,
// or bubblewrap with the agent as its only child.
type process struct {
	cmd   *exec.Cmd
	agent procID        // the agent, as this machine counts processes
	ended chan struct{} // closed when cmd has ended and been waited for
}

// start runs a sandbox's root process in a session of its own, so that no
// signal of this process's terminal reaches it, and with its messages going to
// a file: a pipe would break when this process ends before the sandbox.
func start(ctx context.Context, argv, env []string, logPath string, isolated bool) (*process, error) {
	logFile, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make the sandbox's log: %w", err)
	}
	defer logFile.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}

	info, told, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer info.Close()
	if isolated {
		cmd.ExtraFiles = []*os.File{told}
	}
	err = cmd.Start()
	// Only the child's copy may stay open, else its end is not seen.
	_ = told.Close()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	// It ends with the sandbox.
	go func() {
		defer close(p.ended)
		// How it ended is in cmd.ProcessState; why is in the log and the agent's farewell.
		_ = cmd.Wait()
	}()

	pid := cmd.Process.Pid
	if isolated {
		if pid, err = childPID(ctx, info); err != nil {
			p.kill()
			return nil, err
		}
	}
	if p.agent, err = identify(pid); err != nil && !p.hasEnded() {
		p.kill()
		return nil, err
	}
	return p, nil
}

// childPID reads what bubblewrap tells about its child.
func childPID(ctx context.Context, r *os.File) (int, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Now()) })
	defer stop()
	raw, err := io.ReadAll(io.LimitReader(r, 64<<10))
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	var told struct {
		ChildPID int `json:"child-pid"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &told)
	}
	if err != nil || told.ChildPID <= 0 {
		return 0, errors.New("bubblewrap ended before it had started the sandbox")
	}
	return told.ChildPID, nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// killTimeout bounds the wait for processes that were killed.
const killTimeout = 10 * time.Second

// kill ends the root process, and with it every process of its namespace, and
// waits until it is gone.
func (p *process) kill() {
	ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
	defer cancel()
	if p.agent.PID != 0 && p.agent.PID != p.cmd.Process.Pid {
		// bubblewrap ends when its child does; killed first it would leave the child running.
		_ = p.agent.killAndWait(ctx)
		select {
		case <-p.ended:
			return
		case <-time.After(time.Second):
		}
	} else if id, err := identify(p.cmd.Process.Pid); err == nil && !p.hasEnded() {
		// A child that bubblewrap has not told of yet waits for a word of it, for ever.
		_ = id.killTree(ctx)
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// reason tells how the root process ended.
func (p *process) reason() string {
	st := p.cmd.ProcessState
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return fmt.Sprintf("the sandbox's process was killed by signal %d", int(ws.Signal()))
	}
	// bubblewrap passes on its child's death by a signal as 128 and the signal.
	if c := st.ExitCode(); c > 128 {
		return fmt.Sprintf("the sandbox's process was killed by signal %d", c-128)
	}
	return fmt.Sprintf("the sandbox's process ended with code %d", st.ExitCode())
}

// logTail is the end of what the root process printed, in one line.
func logTail(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 2048
	if st, err := f.Stat(); err == nil && st.Size() > most {
		_, _ = f.Seek(-most, io.SeekEnd)
	}
	raw, _ := io.ReadAll(io.LimitReader(f, most))
	return strings.Join(strings.Fields(string(raw)), " ")
}
