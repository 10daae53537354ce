package docker

import (
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/go-units"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRunArgsAreUnderstood(t *testing.T) {
	var a runArgs
	require.NoError(t, parseRunArgs([]string{
		"--tmpfs", "/scratch", "--tmpfs=/big:size=64m,mode=1777",
		"-v", "/host:/inside:ro", "-vdata:/data", "--volume", "/anonymous",
		"--mount", "type=bind,source=/src,target=/dst,readonly", "--mount=type=tmpfs,dst=/t,tmpfs-size=1m,tmpfs-mode=1770",
		"--shm-size", "64m", "--ulimit", "nofile=100:200", "--ulimit", "nofile=300",
		"--device", "/dev/fuse", "--device=/dev/a:/dev/b:r", "--device", "/dev/c:rw",
		"--cap-add", "SYS_PTRACE", "--cap-drop=ALL", "--security-opt", "seccomp=unconfined",
		"--gpus", "all", "--gpus", `"device=0,1"`, "--runtime", "runsc", "--network", "none",
		"--add-host", "db:10.0.0.1", "--add-host", "gw=host-gateway", "--dns", "10.0.0.53",
		"--sysctl", "net.core.somaxconn=100", "--privileged", "--label", "a=b=c", "-l", "bare", "--hostname", "box",
	}, &a))
	assert.Equal(t, map[string]string{"/scratch": "", "/big": "size=64m,mode=1777"}, a.host.Tmpfs)
	assert.Equal(t, []string{"/host:/inside:ro", "data:/data"}, a.host.Binds)
	require.Len(t, a.host.Mounts, 3)
	assert.Equal(t, mount.Mount{Type: mount.TypeVolume, Target: "/anonymous"}, a.host.Mounts[0])
	assert.Equal(t, mount.Mount{Type: mount.TypeBind, Source: "/src", Target: "/dst", ReadOnly: true}, a.host.Mounts[1])
	assert.Equal(t, &mount.TmpfsOptions{SizeBytes: 1 << 20, Mode: fileMode(0o1770)}, a.host.Mounts[2].TmpfsOptions)
	assert.EqualValues(t, 64<<20, a.host.ShmSize)
	assert.Equal(t, []*units.Ulimit{{Name: "nofile", Soft: 300, Hard: 300}}, a.host.Ulimits)
	assert.Equal(t, []container.DeviceMapping{
		{PathOnHost: "/dev/fuse", PathInContainer: "/dev/fuse", CgroupPermissions: "rwm"},
		{PathOnHost: "/dev/a", PathInContainer: "/dev/b", CgroupPermissions: "r"},
		{PathOnHost: "/dev/c", PathInContainer: "/dev/c", CgroupPermissions: "rw"},
	}, a.host.Devices)
	assert.Equal(t, []string{"SYS_PTRACE"}, []string(a.host.CapAdd))
	assert.Equal(t, []string{"ALL"}, []string(a.host.CapDrop))
	assert.Equal(t, []string{"seccomp=unconfined"}, a.host.SecurityOpt)
	assert.Equal(t, -1, a.host.DeviceRequests[0].Count)
	assert.Equal(t, []string{"0", "1"}, a.host.DeviceRequests[1].DeviceIDs)
	assert.Equal(t, "runsc", a.host.Runtime)
	assert.EqualValues(t, "none", a.host.NetworkMode)
	assert.Equal(t, []string{"db:10.0.0.1", "gw:host-gateway"}, a.host.ExtraHosts)
	assert.Equal(t, []string{"10.0.0.53"}, a.host.DNS)
	assert.Equal(t, map[string]string{"net.core.somaxconn": "100"}, a.host.Sysctls)
	assert.True(t, a.host.Privileged)
	assert.Equal(t, map[string]string{"a": "b=c", "bare": ""}, a.labels)
	assert.Equal(t, "box", a.hostname)
}

func TestRunArgsErrorsNameTheFlag(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--privilegd"}, "flag --privilegd is not supported; supported: --tmpfs"},
		{[]string{"--privilegd"}, "did you mean --privileged?"},
		{[]string{"--rm"}, "--rm"},
		{[]string{"-it"}, "-i"},
		{[]string{"--name=x"}, "--name"},
		{[]string{"--tmpfs"}, "--tmpfs needs a value"},
		{[]string{"--tmpfs", "relative"}, "--tmpfs"},
		{[]string{"--mount", "type=bind,target=x"}, "--mount"},
		{[]string{"--mount", "type=cluster,target=/x"}, "cluster"},
		{[]string{"--mount", "colour=red"}, "colour"},
		{[]string{"--ulimit", "nofile"}, "--ulimit"},
		{[]string{"--shm-size", "much"}, "--shm-size"},
		{[]string{"--device", "fuse"}, "--device"},
		{[]string{"--device", "/dev/a:/dev/b:q"}, "--device"},
		{[]string{"--gpus", "some"}, "--gpus"},
		{[]string{"--dns", "resolver"}, "--dns"},
		{[]string{"--add-host", "db"}, "--add-host"},
		{[]string{"--sysctl", "x"}, "--sysctl"},
		{[]string{"--privileged=maybe"}, "--privileged"},
		{[]string{"--label", "nemo-gym.sandbox=0"}, "nemo-gym."},
		{[]string{"image"}, `"image" is no flag`},
		{[]string{"-v", "a:b"}, "-v"},
	} {
		err := parseRunArgs(c.args, &runArgs{})
		assert.ErrorContains(t, err, c.want, "%v", c.args)
	}
}

func TestExecArgsKeepSecretsOutOfErrors(t *testing.T) {
	a, err := parseExecArgs([]string{"-e", "A=b", "--user=me", "-w", "/d", "--privileged"})
	require.NoError(t, err)
	assert.Equal(t, execArgs{env: []string{"A=b"}, user: "me", workdir: "/d", privileged: true}, a)
	_, err = parseExecArgs([]string{"-e", "=hunter2"})
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "hunter2")
}

func TestLosingTheRightToChangeUsers(t *testing.T) {
	for _, c := range []struct {
		drop, add  []string
		privileged bool
		want       bool
	}{
		{want: false},
		{drop: []string{"ALL"}, want: true},
		{drop: []string{"all"}, add: []string{"SETUID", "CAP_SETGID"}, want: false},
		{drop: []string{"CAP_SETUID"}, want: true},
		{drop: []string{"ALL"}, add: []string{"SETUID"}, want: true},
		{drop: []string{"NET_RAW"}, want: false},
		{drop: []string{"ALL"}, add: []string{"ALL"}, want: false},
		{drop: []string{"ALL"}, privileged: true, want: false},
	} {
		h := &container.HostConfig{CapDrop: c.drop, CapAdd: c.add, Privileged: c.privileged}
		assert.Equal(t, c.want, losesUsers(h), "%+v", c)
	}
}
