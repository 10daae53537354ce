package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
)

// walkProcesses defines the shell function scan, which sets all to the ids of
// the processes that carry the tag $1 in their environment or descend from one
// that does. It uses nothing but what every sh has built in: a sandbox may hold
// no other program.
const walkProcesses = `t=$1 g=$2
scan() {
	all=" "
	while :; do
		before=$all
		for d in /proc/[0-9]*; do
			p=${d#/proc/}
			case $all in *" $p "*) continue;; esac
			[ "$p" = $$ ] && continue
			s=
			read -r s 2>/dev/null <"$d/stat" || continue
			set -- ${s##*) }
			case $1 in Z|X|x) continue;; esac
			mine=
			case $all in *" $2 "*) mine=1;; esac
			if [ -z "$mine" ]; then
				while read -r l || [ -n "$l" ]; do
					case $l in *"$t"*) mine=1; break;; esac
				done 2>/dev/null <"$d/environ"
			fi
			[ -n "$mine" ] && all="$all$p "
		done
		[ "$before" = "$all" ] && break
	done
	[ "$all" != " " ]
}
`

// killTree ends them: SIGTERM, a time of grace of $2 tenths of a second, then
// stop and kill until a pass finds none, so that a process that forks while it is looked at is found.
const killTree = walkProcesses + `
scan || exit 0
kill -TERM $all 2>/dev/null
while [ "$g" -gt 0 ]; do
	scan || exit 0
	sleep 0.1 2>/dev/null || sleep 1 2>/dev/null
	g=$((g - 1))
done
n=0
while scan; do
	[ "$n" -ge 100 ] && exit 1
	kill -STOP $all 2>/dev/null
	scan
	kill -KILL $all 2>/dev/null
	n=$((n + 1))
done
exit 0
`

// kill ends everything that carries a command's tag. It goes on when ctx has ended, for a bounded time.
func (r *engineRunner) kill(ctx context.Context, tag string) {
	grace := seconds(r.i.p.cfg.Exec.KillGraceS)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+killTimeout)
	defer cancel()
	tenths := int64((grace + 99*time.Millisecond) / (100 * time.Millisecond))
	_, code, err := runHelper(ctx, r.i.p.engine, r.i.name, container.ExecOptions{
		User: "0:0",
		Cmd:  []string{"/bin/sh", "-c", killTree, "sh", tag, strconv.FormatInt(tenths, 10)},
	}, nil, 4<<10)
	if err == nil && code != 0 {
		err = fmt.Errorf("processes were still there after the last pass")
	}
	// Where the sandbox has ended there is nothing left to kill.
	if err != nil && r.i.diagnoseEnd(ctx).reason == "" {
		slog.Warn("could not kill what a command left running", "provider", providerName, "sandbox", r.i.name, "error", err.Error())
	}
}

// oomCount prints how often the kernel killed something in the container for want of memory.
const oomCount = `for f in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
	while read -r k v; do
		[ "$k" = oom_kill ] && echo "$v" && exit 0
	done 2>/dev/null <"$f"
done
exit 1
`

// outOfMemory tells whether the kernel has killed for want of memory since it
// was last asked. The error means that nothing could be run in the container.
func (r *engineRunner) outOfMemory(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	out, code, err := runHelper(ctx, r.i.p.engine, r.i.name, container.ExecOptions{
		User: "0:0",
		Cmd:  []string{"/bin/sh", "-c", oomCount},
	}, nil, 4<<10)
	if err != nil || code == 128+9 {
		return false, errors.Join(errNotStarted, err)
	}
	kills, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	if code != 0 || err != nil {
		return false, nil // a kernel that does not count
	}
	r.oomMu.Lock()
	defer r.oomMu.Unlock()
	more := kills > r.oomKills
	r.oomKills = max(r.oomKills, kills)
	return more, nil
}
