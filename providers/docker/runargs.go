package docker

import (
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/go-units"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// runArgs collects what flags of docker run ask for.
type runArgs struct {
	host       container.HostConfig
	hostname   string
	labels     map[string]string
	networkSet bool
}

// flagSpec is one flag: what it is called, whether it stands alone, and what it does.
type flagSpec[T any] struct {
	names []string
	bare  bool // takes no value (or =true, =false)
	apply func(into *T, value string) error
}

// runFlags are the flags that are understood. The rest of docker run's either
// belongs to this provider (names, detaching, entry points) or has a configuration key.
var runFlags = []flagSpec[runArgs]{
	{names: []string{"--tmpfs"}, apply: func(a *runArgs, v string) error {
		target, options, _ := strings.Cut(v, ":")
		if !path.IsAbs(target) {
			return fmt.Errorf("%q must begin with an absolute path", v)
		}
		if a.host.Tmpfs == nil {
			a.host.Tmpfs = map[string]string{}
		}
		a.host.Tmpfs[target] = options
		return nil
	}},
	{names: []string{"--volume", "-v"}, apply: func(a *runArgs, v string) error { return addBind(&a.host, v) }},
	{names: []string{"--mount"}, apply: func(a *runArgs, v string) error {
		m, err := parseMount(v)
		a.host.Mounts = append(a.host.Mounts, m)
		return err
	}},
	{names: []string{"--shm-size"}, apply: func(a *runArgs, v string) (err error) {
		a.host.ShmSize, err = units.RAMInBytes(v)
		return err
	}},
	{names: []string{"--ulimit"}, apply: func(a *runArgs, v string) error {
		u, err := units.ParseUlimit(v)
		if err != nil {
			return err
		}
		a.host.Ulimits = slices.DeleteFunc(a.host.Ulimits, func(o *units.Ulimit) bool { return o.Name == u.Name })
		a.host.Ulimits = append(a.host.Ulimits, u)
		return nil
	}},
	{names: []string{"--device"}, apply: func(a *runArgs, v string) error {
		d, err := parseDevice(v)
		a.host.Devices = append(a.host.Devices, d)
		return err
	}},
	{names: []string{"--cap-add"}, apply: func(a *runArgs, v string) error {
		a.host.CapAdd = append(a.host.CapAdd, v)
		return nil
	}},
	{names: []string{"--cap-drop"}, apply: func(a *runArgs, v string) error {
		a.host.CapDrop = append(a.host.CapDrop, v)
		return nil
	}},
	{names: []string{"--security-opt"}, apply: func(a *runArgs, v string) error {
		a.host.SecurityOpt = append(a.host.SecurityOpt, v)
		return nil
	}},
	{names: []string{"--gpus"}, apply: func(a *runArgs, v string) error {
		r, err := parseGPUs(v)
		a.host.DeviceRequests = append(a.host.DeviceRequests, r)
		return err
	}},
	{names: []string{"--runtime"}, apply: func(a *runArgs, v string) error {
		a.host.Runtime = v
		return nil
	}},
	{names: []string{"--network", "--net"}, apply: func(a *runArgs, v string) error {
		if strings.Contains(v, "=") {
			return fmt.Errorf("%q: only a network's name or mode is understood", v)
		}
		a.host.NetworkMode, a.networkSet = container.NetworkMode(v), true
		return nil
	}},
	{names: []string{"--add-host"}, apply: func(a *runArgs, v string) error {
		name, addr, ok := strings.Cut(v, ":")
		if n, ad, eq := strings.Cut(v, "="); eq {
			name, addr, ok = n, strings.Trim(ad, "[]"), true
		}
		if !ok || name == "" || (addr != "host-gateway" && net.ParseIP(addr) == nil) {
			return fmt.Errorf("%q must be name:address", v)
		}
		a.host.ExtraHosts = append(a.host.ExtraHosts, name+":"+addr)
		return nil
	}},
	{names: []string{"--dns"}, apply: func(a *runArgs, v string) error {
		if net.ParseIP(v) == nil {
			return fmt.Errorf("%q must be an IP address", v)
		}
		a.host.DNS = append(a.host.DNS, v)
		return nil
	}},
	{names: []string{"--sysctl"}, apply: func(a *runArgs, v string) error {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return fmt.Errorf("%q must be name=value", v)
		}
		if a.host.Sysctls == nil {
			a.host.Sysctls = map[string]string{}
		}
		a.host.Sysctls[name] = value
		return nil
	}},
	{names: []string{"--privileged"}, bare: true, apply: func(a *runArgs, v string) (err error) {
		a.host.Privileged, err = strconv.ParseBool(v)
		return err
	}},
	{names: []string{"--label", "-l"}, apply: func(a *runArgs, v string) error {
		name, value, _ := strings.Cut(v, "=")
		if name == "" || strings.HasPrefix(name, labelPrefix) {
			return fmt.Errorf("%q: a label needs a name, and those that begin with %s are this provider's", v, labelPrefix)
		}
		if a.labels == nil {
			a.labels = map[string]string{}
		}
		a.labels[name] = value
		return nil
	}},
	{names: []string{"--hostname", "-h"}, apply: func(a *runArgs, v string) error {
		a.hostname = v
		return nil
	}},
}

// execArgs collects what flags of docker exec ask for.
type execArgs struct {
	env        []string
	user       string
	workdir    string
	privileged bool
}

var execFlags = []flagSpec[execArgs]{
	{names: []string{"--env", "-e"}, apply: func(a *execArgs, v string) error {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return fmt.Errorf("a variable must be given as NAME=value")
		}
		a.env = append(a.env, v)
		return nil
	}},
	{names: []string{"--user", "-u"}, apply: func(a *execArgs, v string) error {
		a.user = v
		return nil
	}},
	{names: []string{"--workdir", "-w"}, apply: func(a *execArgs, v string) error {
		a.workdir = v
		return nil
	}},
	{names: []string{"--privileged"}, bare: true, apply: func(a *execArgs, v string) (err error) {
		a.privileged, err = strconv.ParseBool(v)
		return err
	}},
}

// parseRunArgs applies flags in order; later ones win where only one can.
func parseRunArgs(args []string, into *runArgs) error { return parseFlags(runFlags, args, into) }

func parseExecArgs(args []string) (execArgs, error) {
	var a execArgs
	return a, parseFlags(execFlags, args, &a)
}

// parseFlags reads --flag value, --flag=value, -f value and -fvalue.
func parseFlags[T any](table []flagSpec[T], args []string, into *T) error {
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if !strings.HasPrefix(arg, "-") || arg == "-" || arg == "--" {
			return fmt.Errorf("%q is no flag", arg)
		}
		name, value, given := strings.Cut(arg, "=")
		if !strings.HasPrefix(arg, "--") && len(arg) > 2 {
			name, value, given = arg[:2], strings.TrimPrefix(arg[2:], "="), true
		}
		spec, ok := findFlag(table, name)
		switch {
		case !ok:
			return unknownFlag(table, name)
		case spec.bare && !given:
			value = "true"
		case !spec.bare && !given:
			if i++; i == len(args) {
				return fmt.Errorf("flag %s needs a value", name)
			}
			value = args[i]
		}
		if !spec.bare && value == "" {
			return fmt.Errorf("flag %s needs a value", name)
		}
		if err := spec.apply(into, value); err != nil {
			return fmt.Errorf("flag %s: %w", name, err)
		}
	}
	return nil
}

func findFlag[T any](table []flagSpec[T], name string) (flagSpec[T], bool) {
	for _, s := range table {
		if slices.Contains(s.names, name) {
			return s, true
		}
	}
	return flagSpec[T]{}, false
}

func unknownFlag[T any](table []flagSpec[T], name string) error {
	var known []string
	for _, s := range table {
		known = append(known, s.names[0])
	}
	msg := fmt.Sprintf("flag %s is not supported; supported: %s", name, strings.Join(known, " "))
	if near := core.Nearest(name, known); near != "" {
		msg += fmt.Sprintf(" (did you mean %s?)", near)
	}
	return fmt.Errorf("%s", msg)
}
