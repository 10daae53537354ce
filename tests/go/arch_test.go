// Package tests looks at the project from outside: at the house itself (who may import whom, what no room does, which
// promises have tests) and at the providers, which all go through one suite.
package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/nemo-gym/nemo_gym_sandbox"

// everything, as an entry of room.may, allows any import.
const everything = "*"

// room is a folder of the module and what the Go files in it may import besides the standard library. An entry allows
// that package and everything below it; entries that begin with "./" are rooms of this module.
type room struct {
	path string
	may  []string
}

// testLibraries may be used by the tests of any room.
var testLibraries = []string{
	"github.com/stretchr/testify",
	"go.uber.org/goleak",
	"pgregory.net/rapid",
}

// rooms is the table of the house. The entry with the longest matching path counts.
var rooms = []room{
	{path: "core"},
	{path: "pty", may: []string{"./core", "./pty", "github.com/gorilla/websocket"}},
	{path: "pty/ptyserver", may: []string{"./pty", "github.com/gorilla/websocket", "golang.org/x/sys"}},
	{path: "agent", may: []string{
		"./agent", "./core", "./pty",
		"github.com/creack/pty", "github.com/gorilla/websocket", "github.com/hashicorp/yamux", "github.com/moby/sys/user",
		"golang.org/x/sys",
	}},
	{path: "providers/docker", may: []string{
		"./agent", "./core", "./providers/docker", "./pty",
		"github.com/cenkalti/backoff/v5",
		"github.com/containerd/errdefs",
		"github.com/distribution/reference",
		"github.com/docker/cli",
		"github.com/docker/docker",
		"github.com/docker/go-connections",
		"github.com/docker/go-units",
		"github.com/hashicorp/yamux",
		"github.com/opencontainers/go-digest",
		"github.com/opencontainers/image-spec",
		"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp",
		"go.opentelemetry.io/otel/propagation",
		"golang.org/x/sync",
		"golang.org/x/sys",
	}},
	{path: "providers/local", may: []string{
		"./agent", "./core", "./providers/local", "./pty", "golang.org/x/sync", "golang.org/x/sys",
	}},
	{path: "providers/all", may: []string{"./core", "./providers"}},
	{path: "capi", may: []string{everything}},
	{path: "bench", may: []string{everything}},
	{path: "examples", may: []string{"./core", "./providers/all"}},
	{path: "tests", may: []string{everything}},
}

// providerDefaults is for a provider without a row of its own: a new one needs a row only for its SDK.
var providerDefaults = []string{
	"./agent", "./core", "./pty", "github.com/cenkalti/backoff/v5", "github.com/gorilla/websocket", "golang.org/x/sync",
}

// oneFile names packages that a single file hides from all others.
var oneFile = map[string]string{
	"github.com/docker/docker/client": "providers/docker/engine.go",
}

// mayPrint are the rooms that hold programs or their helpers; the rest is a library, which neither prints nor exits.
var mayPrint = []string{"agent/cmd", "bench", "examples", "tests"}

// goStarter is the only function in capi that holds a go statement: it recovers panics and reports them.
const goStarter = "safeGo"

type goPackage struct {
	ImportPath, Dir                    string
	Standard                           bool
	GoFiles, CgoFiles                  []string
	IgnoredGoFiles                     []string
	TestGoFiles, XTestGoFiles          []string
	Imports, TestImports, XTestImports []string
	Deps                               []string
	Error                              *struct{ Err string }
}

func (p goPackage) path() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// list runs go list over the whole module, dependencies included.
func list(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-deps", "-json", "./...")
	cmd.Dir = filepath.Join("..", "..")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps ./...: %v\n%s", err, stderr.String())
	}
	packages := map[string]goPackage{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list -deps ./...: unreadable answer: %v", err)
		}
		packages[p.ImportPath] = p
	}
	return packages
}

// ours tells whether a package is the project's. What lies in build/ is output, or somebody's experiment.
func ours(p goPackage) bool {
	return within(p.ImportPath, module) && !within(p.path(), "build")
}

func within(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}

func roomOf(path string) (room, bool) {
	var best room
	for _, r := range rooms {
		if within(path, r.path) && len(r.path) > len(best.path) {
			best = r
		}
	}
	if best.path != "" {
		return best, true
	}
	if parts := strings.Split(path, "/"); len(parts) >= 2 && parts[0] == "providers" {
		own := "providers/" + parts[1]
		return room{path: own, may: append([]string{"./" + own}, providerDefaults...)}, true
	}
	return room{}, false
}

// allowed tells whether one of entries covers the import.
func allowed(imported string, entries []string) bool {
	for _, entry := range entries {
		if entry == everything {
			return true
		}
		if name, inside := strings.CutPrefix(entry, "./"); inside {
			entry = module + "/" + name
		}
		if within(imported, entry) {
			return true
		}
	}
	return false
}

// standard tells whether an import belongs to Go itself. "C" does not: it has a rule of its own.
func standard(packages map[string]goPackage, imported string) bool {
	if p, known := packages[imported]; known {
		return p.Standard
	}
	return !strings.Contains(strings.Split(imported, "/")[0], ".") && imported != "C"
}

func TestArchitectureImports(t *testing.T) {
	packages := list(t)
	for _, p := range packages {
		if !ours(p) {
			continue
		}
		if p.Error != nil {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
			continue
		}
		r, ok := roomOf(p.path())
		if !ok {
			t.Errorf("%s is in no room: add a row to the table in tests/go/arch_test.go, with what it may import", p.ImportPath)
			continue
		}
		report := func(kind string, imports, may []string) {
			for _, imported := range imports {
				if imported == "C" || standard(packages, imported) || allowed(imported, may) {
					continue
				}
				t.Errorf("%s: %s imports %s; the room %s may import: %s", p.path(), kind, imported, r.path, names(may))
			}
		}
		report("a file", p.Imports, r.may)
		testMay := slices.Concat(r.may, testLibraries, []string{"./" + r.path})
		report("a test", p.TestImports, testMay)
		report("a test", p.XTestImports, testMay)
	}
}

// The table above looks at direct imports. Where a room promises to stay small, what comes with them counts too.
func TestArchitectureDependencies(t *testing.T) {
	packages := list(t)
	for _, rule := range []struct{ path, not, why string }{
		{"core", ".", "core is built from the standard library alone"},
		{"agent/cmd/ngs-agent", "github.com/docker", "the agent's binary is copied into every sandbox and stays small"},
		{"agent/cmd/ngs-agent", module + "/providers", "the agent runs inside a sandbox and knows no backend"},
	} {
		p, ok := packages[module+"/"+rule.path]
		if !ok {
			t.Errorf("there is no package %s", rule.path)
			continue
		}
		for _, dep := range p.Deps {
			forbidden := within(dep, rule.not)
			if rule.not == "." {
				forbidden = !standard(packages, dep)
			}
			if forbidden {
				t.Errorf("%s depends on %s: %s", rule.path, dep, rule.why)
			}
		}
	}
}

func names(may []string) string {
	if len(may) == 0 {
		return "the standard library only"
	}
	return "the standard library, " + strings.Join(may, ", ")
}

// source is one Go file of ours that is not a test.
type source struct {
	path string // from the module's root, with slashes
	fset *token.FileSet
	file *ast.File
}

func (s source) at(n ast.Node) string {
	return s.path + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// sources parses every file of ours except tests, also those that a build tag leaves out here.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	for _, p := range list(t) {
		if !ours(p) {
			continue
		}
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles, p.IgnoredGoFiles) {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Errorf("%s: %v", p.path(), err)
				continue
			}
			all = append(all, source{path: p.path() + "/" + name, fset: fset, file: file})
		}
	}
	if len(all) == 0 {
		t.Fatal("found no source files: the checks below would pass on nothing")
	}
	return all
}

func TestArchitectureOnlyCapiImportsC(t *testing.T) {
	for _, s := range sources(t) {
		for _, spec := range s.file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if imported == "C" && !within(s.path, "capi") {
				t.Errorf("%s imports \"C\": only capi does, everything else builds without a C compiler", s.at(spec))
			}
		}
	}
}

func TestArchitectureOneFilePackages(t *testing.T) {
	for _, s := range sources(t) {
		for _, spec := range s.file.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			if owner, hidden := oneFile[imported]; hidden && s.path != owner {
				t.Errorf("%s imports %s: only %s does, so that it can be exchanged", s.at(spec), imported, owner)
			}
		}
	}
}

// A library that prints corrupts its host's output, and one that exits takes the host with it.
func TestArchitectureNobodyPrintsOrExits(t *testing.T) {
	for _, s := range sources(t) {
		if slices.ContainsFunc(mayPrint, func(folder string) bool { return within(s.path, folder) }) {
			continue
		}
		local := importedAs(s.file)
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if name := forbiddenCall(call, local); name != "" {
				t.Errorf("%s calls %s: return an error or use the logger that was handed in", s.at(call), name)
			}
			return true
		})
	}
}

// importedAs maps the name a file uses for a package to the package's path.
func importedAs(file *ast.File) map[string]string {
	local := map[string]string{}
	for _, spec := range file.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		name := path[strings.LastIndex(path, "/")+1:]
		if spec.Name != nil {
			name = spec.Name.Name
		}
		local[name] = path
	}
	return local
}

func forbiddenCall(call *ast.CallExpr, local map[string]string) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		if fun.Name == "print" || fun.Name == "println" {
			return fun.Name
		}
	case *ast.SelectorExpr:
		x, ok := fun.X.(*ast.Ident)
		if !ok {
			return ""
		}
		name := fun.Sel.Name
		switch local[x.Name] {
		case "os":
			if name == "Exit" {
				return "os.Exit"
			}
		case "log": // the package's functions write to the process's stderr; log.New and the like do not
			for _, prefix := range []string{"Fatal", "Panic", "Print"} {
				if strings.HasPrefix(name, prefix) {
					return "log." + name
				}
			}
		case "fmt":
			if strings.HasPrefix(name, "Print") {
				return "fmt." + name
			}
		}
	}
	return ""
}

// A panic in a goroutine of the library would end the Python process: each one starts through the helper that recovers.
func TestArchitectureGoroutinesInCapi(t *testing.T) {
	for _, s := range sources(t) {
		if !within(s.path, "capi") {
			continue
		}
		for _, decl := range s.file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Name.Name == goStarter {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				if stmt, ok := n.(*ast.GoStmt); ok {
					t.Errorf("%s has a go statement: start it with %s, which turns a panic into an error", s.at(stmt), goStarter)
				}
				return true
			})
		}
	}
}

// Providers are values in providers/all: a package that registers itself cannot be left out, or tested twice.
func TestArchitectureNoInitInProviders(t *testing.T) {
	for _, s := range sources(t) {
		if !within(s.path, "providers") && !within(s.path, "core") {
			continue
		}
		for _, decl := range s.file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function: say it in a constructor", s.at(fn))
			}
		}
	}
}

// The table itself: a typing error in it would allow or forbid in silence.
func TestArchitectureTable(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rooms {
		if seen[r.path] {
			t.Errorf("the room %s is listed twice", r.path)
		}
		seen[r.path] = true
		for _, entry := range r.may {
			if name, inside := strings.CutPrefix(entry, "./"); inside {
				if _, ok := roomOf(name); !ok && name != "providers" {
					t.Errorf("room %s may import %s, which is no room", r.path, entry)
				}
			}
		}
	}
	for _, c := range []struct {
		imported string
		entries  []string
		want     bool
	}{
		{module + "/core", []string{"./core"}, true},
		{module + "/corelike", []string{"./core"}, false},
		{module + "/providers/docker", []string{"./providers/local"}, false},
		{"github.com/docker/docker/client", []string{"github.com/docker/docker"}, true},
		{"github.com/docker/docker-fork", []string{"github.com/docker/docker"}, false},
		{"anything.example/x", []string{everything}, true},
		{"anything.example/x", nil, false},
	} {
		if got := allowed(c.imported, c.entries); got != c.want {
			t.Errorf("allowed(%s, %v) is %v", c.imported, c.entries, got)
		}
	}
}
