package opensandbox

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quote makes one word of a shell's command line.
func quote(s string) string {
	if plainWord.MatchString(s) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'"
}

// words joins an argv into a command line.
func words(argv []string) string {
	quoted := make([]string, len(argv))
	for n, a := range argv {
		quoted[n] = quote(a)
	}
	return strings.Join(quoted, " ")
}

// account is whom a command runs as: by numbers, or by a name that only the sandbox knows.
type account struct {
	name     string
	uid, gid *int
}

// owner is how chown is told of an account; "" for the daemon's own.
func (a account) owner() string {
	switch {
	case a.uid == nil:
		return a.name
	case a.gid != nil:
		return strconv.Itoa(*a.uid) + ":" + strconv.Itoa(*a.gid)
	case *a.uid == 0:
		return ""
	}
	return strconv.Itoa(*a.uid)
}

// readAccount reads a user as requests name it: "", a name, a uid, or uid:gid.
func readAccount(op, user string) (account, error) {
	name, group, grouped := strings.Cut(user, ":")
	if name == "root" && !grouped {
		return account{uid: new(0)}, nil
	}
	if name == "" && !grouped {
		return account{}, nil
	}
	uid, err := strconv.Atoi(name)
	if err != nil {
		if grouped {
			return account{}, core.Errorf(core.KindNotSupported, op, "user %q: OpenSandbox takes a group only as uid:gid", user)
		}
		return account{name: name}, nil
	}
	a := account{uid: &uid}
	if grouped {
		gid, err := strconv.Atoi(group)
		if err != nil {
			return account{}, core.Errorf(core.KindNotSupported, op, "user %q: OpenSandbox takes a group only as uid:gid", user)
		}
		a.gid = &gid
	}
	return a, nil
}

// asUser makes a command line run as a named user; "" is the user's shell.
func asUser(command, name string) string {
	line := "su -s /bin/sh "
	if command != "" {
		line += "-c " + quote(command) + " "
	}
	return line + quote(name)
}

// interactive is the shell of a session that names no command.
const interactive = `exec "$(command -v bash || echo sh)"`

// withEnv puts variables before a command line. The values are on it for as long as it takes env to start.
func withEnv(command string, env map[string]string) string {
	if len(env) == 0 {
		return command
	}
	if command == "" {
		command = interactive
	}
	line := []string{"env"}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		line = append(line, k+"="+quote(env[k]))
	}
	return strings.Join(append(line, "sh", "-c", quote(command)), " ")
}
