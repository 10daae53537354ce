package local

import (
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// checkUser accepts the names of the user that this process runs as, the only
// one that can run commands here.
func checkUser(asked string) error {
	if asked == "" {
		return nil
	}
	uid, gid := strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())
	names, groups := []string{uid}, []string{gid}
	if u, err := user.LookupId(uid); err == nil {
		names = append(names, u.Username)
	}
	if uid == "0" {
		names = append(names, "root")
	}
	if g, err := user.LookupGroupId(gid); err == nil {
		groups = append(groups, g.Name)
	}
	who, group, hasGroup := strings.Cut(asked, ":")
	if slices.Contains(names, who) && (!hasGroup || slices.Contains(groups, group)) {
		return nil
	}
	return core.Errorf(core.KindInvalid, "exec",
		"cannot run commands as another user: %q was asked for, this process is %q; leave user out, or use a provider that has users", asked, names[len(names)-1])
}
