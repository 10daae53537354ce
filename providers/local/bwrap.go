package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// namespaces are the options that every sandbox starts with. All capabilities
// are dropped, since with them root inside could make the read-only mounts writable.
func namespaces(network string) []string {
	args := []string{"--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"}
	if network == networkNone {
		args = append(args, "--unshare-net")
	}
	return append(args, "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")
}

// infoFD is the descriptor on which bubblewrap tells the process id of its child: the first after stderr.
const infoFD = 3

// bwrapArgs is the command line, without bubblewrap's own name, that runs the
// agent as process 1 of a sandbox. It holds no secret.
func bwrapArgs(network string, v view, agentArgs []string) []string {
	args := append(namespaces(network), "--as-pid-1", "--info-fd", fmt.Sprint(infoFD))
	for _, m := range v.mounts() {
		args = append(args, m.op)
		if m.src != "" {
			args = append(args, m.src)
		}
		args = append(args, m.dst)
		// It only hides; what a command wrote there would look kept and be lost.
		if m.op == "--tmpfs" && m.dst == v.stateDir {
			args = append(args, "--remount-ro", m.dst)
		}
	}
	args = append(args, "--chdir", "/", "--", insideAgent)
	return append(args, agentArgs...)
}

// probeTimeout bounds the trial of bubblewrap; it takes some 15 ms on an idle machine.
const probeTimeout = 15 * time.Second

// probes remembers for each kind of network whether bubblewrap works here. It
// is a property of the machine, so a process asks once.
var probes = struct {
	sync.Mutex
	byNetwork map[string]probe
}{byNetwork: map[string]probe{}}

type probe struct {
	path string
	err  error
}

// bubblewrap finds bubblewrap and makes sure that it works. The error says what
// is in its way and what to do.
func bubblewrap(network string) (string, error) {
	probes.Lock()
	defer probes.Unlock()
	p, ok := probes.byNetwork[network]
	if !ok {
		p.path, p.err = tryBubblewrap(network)
		probes.byNetwork[network] = p
	}
	return p.path, p.err
}

func tryBubblewrap(network string) (string, error) {
	path, err := exec.LookPath("bwrap")
	if err != nil {
		return "", errors.New("bubblewrap is not installed (no bwrap on PATH); install it, for example: apt-get install bubblewrap")
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append(namespaces(network), "--tmpfs", "/run", "--chdir", "/", "--", "/bin/sh", "-c", ":")...)
	cmd.Env = environ(nil, nil)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(out.String())
		if said == "" {
			said = err.Error()
		}
		return "", fmt.Errorf("bubblewrap does not work here: %s; %s", said, remedy())
	}
	return path, nil
}

// remedy looks for the setting that keeps a user from making namespaces.
func remedy() string {
	for _, s := range []struct{ file, bad, cause, fix string }{
		{"/proc/sys/user/max_user_namespaces", "0", "user namespaces are switched off", "sysctl -w user.max_user_namespaces=15000"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "user namespaces are for root only", "sysctl -w kernel.unprivileged_userns_clone=1"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor restricts user namespaces", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bwrap that allows userns"},
	} {
		if v, err := os.ReadFile(s.file); err == nil && strings.TrimSpace(string(v)) == s.bad {
			return fmt.Sprintf("%s; as root: %s", s.cause, s.fix)
		}
	}
	return "namespaces are probably forbidden by the container or service that this process runs in; allow them there (for Docker: --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined)"
}

// isolationError is what creating a sandbox fails with when isolation was asked for and can't be had.
func isolationError(cause error) error {
	return core.Errorf(core.KindCreate, "create", "isolation with bubblewrap was asked for: %w", cause)
}
