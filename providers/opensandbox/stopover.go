package opensandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// moveIn is how a file gets from its stopover to its place, and linkTo how a stopover leads to a file.
const (
	moveIn = `trap 'rm -f -- "$1"' EXIT; d=$(dirname -- "$2") && mkdir -p -- "$d" && ! [ -d "$2" ] && mv -f -- "$1" "$2"`
	linkTo = `case $1 in /*) p=$1 ;; *) p=$PWD/$1 ;; esac; ln -s -- "$p" "$2"`
)

// ownFolders makes a folder, and those above it that are missing, somebody's.
const ownFolders = `owner=$1 d=$2; set --; p=$d
while ! [ -e "$p" ]; do set -- "$@" "$p"; p=$(dirname -- "$p"); done
[ $# = 0 ] || { mkdir -p -- "$d" && chown "$owner" -- "$@"; }`

// isPattern tells whether the daemon would read more into a path than a path: it replaces $NAME.
func isPattern(p string) bool { return strings.Contains(p, "$") }

// goTo begins a command in a directory whose name the daemon would not take as it is.
func goTo(dir string) string { return "cd -- " + quote(dir) + " || exit 126\n" }

// stopover is a path without any meaning of its own.
func stopover() string {
	var p [8]byte
	_, _ = rand.Read(p[:]) // it never fails
	return "/tmp/.nemo-gym-" + hex.EncodeToString(p[:])
}

// script runs a few lines of shell about files, with the paths as its arguments, as who the daemon is: what it writes and
// reads is its own too.
func (i *instance) script(ctx context.Context, text string, args ...string) error {
	_, err := i.scriptOutput(ctx, text, args...)
	return err
}

// scriptOutput is script, and gives what it printed.
func (i *instance) scriptOutput(ctx context.Context, text string, args ...string) (string, error) {
	out := core.NewCollector(1000)
	defer out.Close()
	command := words(append([]string{"sh", "-c", text, "sh"}, args...))
	res, err := i.run(ctx, core.ExecRequest{Command: command, Timeout: time.Minute}, out)
	said := out.Output(core.Stdout).String()
	if err == nil && (res.ErrorType != "" || res.ExitCode != 0) {
		said += out.Output(core.Stderr).String()
		err = core.Errorf(core.KindInvalid, "", "%q ended with code %d %s: %s", args, res.ExitCode, res.Reason, said)
	}
	return said, err
}
