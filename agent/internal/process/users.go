package process

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/sys/user"
)

// Identity is whom a command runs as.
type Identity struct {
	Cred *syscall.Credential // nil: as the agent
	Home string
}

// Users resolves names and ids by the sandbox's own passwd and group files.
type Users struct {
	single bool
	self   user.ExecUser

	mu    sync.Mutex
	stamp string // of the files when the cache was filled
	cache map[string]Identity
}

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
)

// NewUsers resolves; single: everybody is whom this process runs as, and nobody else can be asked for.
func NewUsers(single bool) *Users {
	return &Users{single: single, self: user.ExecUser{Uid: os.Getuid(), Gid: os.Getgid()}}
}

// Resolve finds who "name", "uid", "name:group" or "uid:gid" is; "" is the
// agent's own user. An id without an entry is allowed, a name without one is an error.
func (u *Users) Resolve(who string) (Identity, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if s := stamp(passwdFile) + stamp(groupFile); s != u.stamp || u.cache == nil {
		u.stamp, u.cache = s, map[string]Identity{}
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

func (u *Users) lookup(who string) (Identity, error) {
	spec := who
	if spec == "" {
		spec = fmt.Sprint(u.self.Uid)
	}
	if strings.HasPrefix(spec, "-") {
		return Identity{}, fmt.Errorf("user %q is not a user name or id", who)
	}
	eu, err := user.GetExecUserPath(spec, &user.ExecUser{Home: "/"}, passwdFile, groupFile)
	if err != nil {
		return Identity{}, fmt.Errorf("user %q is not known in the sandbox: %w; give a name from its %s or a numeric id", who, err, passwdFile)
	}
	id := Identity{Home: eu.Home}
	if id.Home == "" {
		id.Home = "/"
	}
	if who == "" {
		return id, nil
	}
	if u.single {
		if eu.Uid != u.self.Uid {
			return Identity{}, fmt.Errorf("this sandbox cannot run commands as another user (asked for %q, it runs as uid %d)", who, u.self.Uid)
		}
		return id, nil
	}
	// The primary group is among the supplementary ones, as container engines have it: a file
	// that is closed to a group stays closed to a process that changes its primary group.
	id.Cred = &syscall.Credential{Uid: uint32(eu.Uid), Gid: uint32(eu.Gid), Groups: []uint32{uint32(eu.Gid)}}
	for _, g := range eu.Sgids {
		if g != eu.Gid {
			id.Cred.Groups = append(id.Cred.Groups, uint32(g))
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
