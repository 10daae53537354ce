package local

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Paths inside an isolated sandbox. They lie in its own /run, where no program
// expects anything of ours and cleaning up /tmp does not reach.
const (
	insideRunDir = "/run/ngs"
	insideAgent  = "/run/ngs-agent"
)

// nameServices are the files below /run that looking up names needs; the rest
// of /run is where daemons that obey root listen, so it stays hidden.
var nameServices = []string{
	"/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager/resolv.conf", "/run/nscd",
}

// mount is one operation on the file tree of a sandbox, in bubblewrap's words.
type mount struct {
	op  string // "--bind", "--ro-bind", "--ro-bind-try" or "--tmpfs"
	src string // "" for --tmpfs
	dst string
}

// view is what an isolated sandbox sees of this machine's files.
type view struct {
	workdir  string // as it was asked for
	tmp      string // becomes /tmp
	varTmp   string // becomes /var/tmp
	runDir   string // holds the agent's socket
	agent    string // the agent's binary
	stateDir string // other sandboxes' tokens, hidden
}

// checkWorkdir refuses directories that can't be made writable without opening
// to the sandbox what its isolation is there to close.
func checkWorkdir(dir string) error {
	real := realPath(dir)
	for _, closed := range []string{"/dev", "/proc", "/run", "/sys", "/var/run"} {
		if real == closed {
			return core.Errorf(core.KindInvalid, "create", "workdir %q belongs to the system and can't be given to an isolated sandbox; use a directory of its own", dir)
		}
	}
	if real == "/" {
		return core.Errorf(core.KindInvalid, "create", `workdir "/" would make all of this machine writable; use a directory of its own, or isolation none`)
	}
	return nil
}

// mounts lists what has to be mounted over the read-only root, parents first.
func (v view) mounts() []mount {
	byPath := map[string]mount{}
	add := func(op, src, dst string) { byPath[dst] = mount{op, src, dst} }

	add("--tmpfs", "", "/run")
	for _, p := range nameServices {
		add("--ro-bind-try", p, p)
	}
	add("--bind", v.tmp, "/tmp")
	// A link there leads to a place that is handled by itself.
	if st, err := os.Lstat("/var/tmp"); err == nil && st.IsDir() {
		add("--bind", v.varTmp, "/var/tmp")
	}
	if !below(v.stateDir, "/tmp") && !below(v.stateDir, "/run") {
		add("--tmpfs", "", v.stateDir)
	}
	if s := engineSocket(); s != "" && !below(s, "/tmp") && !below(s, "/run") {
		add("--ro-bind", os.DevNull, s)
	}
	// The workspace wins over all of the above where they are the same place, and
	// lies inside or around them where they are not. It is mounted at its real
	// place, and at the asked one when the link to it is hidden.
	real := realPath(v.workdir)
	add("--bind", real, real)
	if v.workdir != real && (below(v.workdir, "/tmp") || below(v.workdir, "/run")) {
		add("--bind", real, v.workdir)
	}
	add("--bind", v.runDir, insideRunDir)
	add("--ro-bind", v.agent, insideAgent)

	list := make([]mount, 0, len(byPath))
	for _, m := range byPath {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b mount) int { return strings.Compare(a.dst, b.dst) })
	return list
}

// engineSocket is where DOCKER_HOST says that a container engine listens: who
// can speak to it owns the machine.
func engineSocket() string {
	path, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://")
	if !ok {
		return ""
	}
	real := realPath(path)
	if _, err := os.Stat(real); err != nil {
		return ""
	}
	return real
}

// realPath resolves links as far as the path exists.
func realPath(p string) string {
	p = filepath.Clean(p)
	if r, err := filepath.EvalSymlinks(p); err == nil {
		return r
	}
	if dir := filepath.Dir(p); dir != p {
		return filepath.Join(realPath(dir), filepath.Base(p))
	}
	return p
}

// below tells whether p is dir or lies in it.
func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
