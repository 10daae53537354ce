package daemon

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/sys/user"
)

// identity is whom a command runs as.
type identity struct {
	cred *syscall.Credential // nil: as the agent
	home string
}

// users resolves names and ids by the sandbox's own passwd and group files.
type users struct {
	single bool
	self   user.ExecUser

	mu    sync.Mutex
	stamp string // of the files when the cache was filled
	cache map[string]identity
}

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

func newUsers(single bool) *users {
	return &users{single: single, self: user.ExecUser{Uid: os.Getuid(), Gid: os.Getgid()}}
}

// resolve finds who "name", "uid", "name:group" or "uid:gid" is; "" is the
// agent's own user. An id without an entry is allowed, a name without one is an error.
func (u *users) resolve(who string) (identity, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := stamp(passwdFile) + stamp(groupFile); s != u.stamp || u.cache == nil {
		u.stamp, u.cache = s, map[string]identity{}
	}
	if id, ok := u.cache[who]; ok {
		return id, nil
	}
	id, err := u.lookup(who)
	if err == nil {
		u.cache[who] = id
	}
	return id, err
}

func (u *users) lookup(who string) (identity, error) {
	spec := who
	if spec == "" {
		spec = fmt.Sprint(u.self.Uid)
	}
	if strings.HasPrefix(spec, "-") {
		return identity{}, fmt.Errorf("user %q is not a user name or id", who)
	}
	eu, err := user.GetExecUserPath(spec, &user.ExecUser{Home: "/"}, passwdFile, groupFile)
	if err != nil {
		return identity{}, fmt.Errorf("user %q is not known in the sandbox: %w; give a name from its %s or a numeric id", who, err, passwdFile)
	}
	id := identity{home: eu.Home}
	if id.home == "" {
		id.home = "/"
	}
	if who == "" {
		return id, nil
	}
	if u.single {
		if eu.Uid != u.self.Uid {
			return identity{}, fmt.Errorf("this sandbox cannot run commands as another user (asked for %q, it runs as uid %d)", who, u.self.Uid)
		}
		return id, nil
	}
	// The primary group is among the supplementary ones, as container engines have it: a file
	// that is closed to a group stays closed to a process that changes its primary group.
	id.cred = &syscall.Credential{Uid: uint32(eu.Uid), Gid: uint32(eu.Gid), Groups: []uint32{uint32(eu.Gid)}}
	for _, g := range eu.Sgids {
		if g != eu.Gid {
			id.cred.Groups = append(id.cred.Groups, uint32(g))
		}
	}
	return id, nil
}

func stamp(path string) string {
	st, err := os.Stat(path)
	if err != nil {
		return "-"
	}
	return fmt.Sprintf("%d.%d.", st.ModTime().UnixNano(), st.Size())
}
