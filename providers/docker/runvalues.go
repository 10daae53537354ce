package docker

import (
	"encoding/csv"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/go-units"
)

// addBind takes source:target[:options], or a target alone for a volume without
// a name. What else is wrong with it the engine says.
func addBind(host *container.HostConfig, v string) error {
	source, target, ok := strings.Cut(v, ":")
	if !ok {
		if !path.IsAbs(v) {
			return fmt.Errorf("%q must be source:target or an absolute path", v)
		}
		host.Mounts = append(host.Mounts, mount.Mount{Type: mount.TypeVolume, Target: v})
		return nil
	}
	if source == "" || !path.IsAbs(target) {
		return fmt.Errorf("%q must be source:target[:options] with an absolute target", v)
	}
	host.Binds = append(host.Binds, v)
	return nil
}

// parseMount reads docker run's --mount, type=bind,source=...,target=...
func parseMount(v string) (mount.Mount, error) {
	m := mount.Mount{Type: mount.TypeVolume}
	fields, err := csv.NewReader(strings.NewReader(v)).Read()
	if err != nil {
		return m, fmt.Errorf("%q is no list of key=value: %w", v, err)
	}
	for _, field := range fields {
		key, value, hasValue := strings.Cut(field, "=")
		switch key = strings.ToLower(key); key {
		case "type":
			m.Type = mount.Type(strings.ToLower(value))
		case "source", "src":
			m.Source = value
		case "target", "dst", "destination":
			m.Target = value
		case "readonly", "ro":
			m.ReadOnly = true
			if hasValue {
				if m.ReadOnly, err = strconv.ParseBool(value); err != nil {
					return m, fmt.Errorf("%s: %w", key, err)
				}
			}
		case "bind-propagation":
			m.BindOptions = &mount.BindOptions{Propagation: mount.Propagation(value)}
		case "volume-nocopy":
			m.VolumeOptions = &mount.VolumeOptions{NoCopy: !hasValue || value == "true"}
		case "tmpfs-size":
			size, err := units.RAMInBytes(value)
			if err != nil {
				return m, fmt.Errorf("%s: %w", key, err)
			}
			tmpfsOptions(&m).SizeBytes = size
		case "tmpfs-mode":
			mode, err := strconv.ParseUint(value, 8, 32)
			if err != nil {
				return m, fmt.Errorf("%s: %w", key, err)
			}
			tmpfsOptions(&m).Mode = fileMode(mode)
		default:
			known := []string{"type", "source", "target", "readonly", "bind-propagation", "volume-nocopy", "tmpfs-size", "tmpfs-mode"}
			return m, fmt.Errorf("key %q is not supported; supported: %s", key, strings.Join(known, ", "))
		}
	}
	switch {
	case !path.IsAbs(m.Target):
		return m, fmt.Errorf("%q needs target=/an/absolute/path", v)
	case m.Type != mount.TypeBind && m.Type != mount.TypeVolume && m.Type != mount.TypeTmpfs:
		return m, fmt.Errorf("type %q is not supported; supported: bind, volume, tmpfs", m.Type)
	}
	return m, nil
}

func tmpfsOptions(m *mount.Mount) *mount.TmpfsOptions {
	if m.TmpfsOptions == nil {
		m.TmpfsOptions = &mount.TmpfsOptions{}
	}
	return m.TmpfsOptions
}

// parseDevice reads host[:container][:rwm].
func parseDevice(v string) (container.DeviceMapping, error) {
	parts := strings.Split(v, ":")
	d := container.DeviceMapping{PathOnHost: parts[0], PathInContainer: parts[0], CgroupPermissions: "rwm"}
	access := func(s string) bool { return s != "" && strings.Trim(s, "rwm") == "" }
	switch {
	case !path.IsAbs(parts[0]) || len(parts) > 3:
		return d, fmt.Errorf("%q must be /dev/host[:/dev/container][:rwm]", v)
	case len(parts) == 2 && access(parts[1]):
		d.CgroupPermissions = parts[1]
	case len(parts) >= 2:
		d.PathInContainer = parts[1]
	}
	if len(parts) == 3 {
		d.CgroupPermissions = parts[2]
	}
	if !path.IsAbs(d.PathInContainer) || !access(d.CgroupPermissions) {
		return d, fmt.Errorf("%q must be /dev/host[:/dev/container][:rwm]", v)
	}
	return d, nil
}

// parseGPUs reads all, a number, or a list of key=value (count, device, driver, capabilities).
func parseGPUs(v string) (container.DeviceRequest, error) {
	r := container.DeviceRequest{Capabilities: [][]string{{"gpu"}}}
	fields, err := csv.NewReader(strings.NewReader(v)).Read()
	if err != nil {
		return r, fmt.Errorf("%q: %w", v, err)
	}
	count := func(s string) (err error) {
		if r.Count = -1; s != "all" {
			r.Count, err = strconv.Atoi(s)
		}
		return err
	}
	for _, field := range fields {
		key, value, hasValue := strings.Cut(field, "=")
		switch {
		case !hasValue:
			err = count(key)
		case key == "count":
			err = count(value)
		case key == "device":
			r.DeviceIDs = strings.Split(value, ",")
		case key == "driver":
			r.Driver = value
		case key == "capabilities":
			r.Capabilities = [][]string{append(strings.Split(value, ","), "gpu")}
		default:
			err = fmt.Errorf("key %q is not supported", key)
		}
		if err != nil {
			return r, fmt.Errorf("%q must be all, a number, or count=, device=, driver=, capabilities=: %w", v, err)
		}
	}
	if r.Count == 0 && r.DeviceIDs == nil {
		r.Count = -1
	}
	return r, nil
}
