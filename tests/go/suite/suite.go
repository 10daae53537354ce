// Package suite checks that a provider keeps the contract of core.Provider. It
// is run by each provider's own test, also by those of other modules:
//
//	func TestMine(t *testing.T) {
//		suite.Run(t, suite.Config{New: func(t testing.TB) core.Provider { ... }})
//	}
//
// A case is named after the failure that it keeps away. What a backend does
// differently is declared in a field of Config; no case asks for a name.
package suite

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Config describes the provider under test. The zero values of the fields
// behind Spec describe a backend that can do everything.
type Config struct {
	// New makes a provider. It is called more than once: some cases stand for several processes.
	New func(t testing.TB) core.Provider
	// Spec is what sandboxes are made from. Its image has a POSIX shell and the
	// usual small programs (busybox is enough), and /proc.
	Spec core.Spec
	// Leftovers lists by name everything of the backend that a sandbox consists of: containers, folders,
	// processes. nil means that there is no way to tell.
	Leftovers func(t testing.TB) []string

	// Unisolated: commands share the file tree and the processes of this machine.
	Unisolated bool
	// NoUsers: commands run as one user only, asking for another is refused.
	NoUsers bool
	// NoArgv: there is no way to run a program without a shell.
	NoArgv bool
	// NoStdin: commands can't be given input.
	NoStdin bool
	// NoStreaming: output arrives only when the command has ended.
	NoStreaming bool
	// NoBackPressure: a command may go on while its output is not taken.
	NoBackPressure bool
	// TextOnly: commands and values are text; bytes that are no UTF-8 do not arrive as they are.
	TextOnly bool
	// AsLines: output is told line by line. How lines ended, and whether the last one did, is not told; stderr gets
	// a line more when the code is not 0.
	AsLines bool
	// Merged: stdout holds what was written to stderr too, and stderr holds what the backend says.
	Merged bool
	// NoHome: a user who is given by number keeps another one's home.
	NoHome bool
	// LateUsers: an unknown user makes the command fail with a code, instead of being refused.
	LateUsers bool
	// NoTreeKill: on timeout and cancel only the command itself is sure to end, not what has left its session.
	NoTreeKill bool
	// NoSignalCodes: death by a signal is not always told as 128 and its number.
	NoSignalCodes bool
	// NoTerminalSignalCodes: of a terminal session's death by a signal no number is told.
	NoTerminalSignalCodes bool
	// ShortReplay: of what a session prints while nobody is attached only the last mebibyte is kept.
	ShortReplay bool
	// NoPause: sandboxes can't be paused.
	NoPause bool
	// NoConnect: sandboxes can't be taken up by another process.
	NoConnect bool
	// NoTTL: the backend does not end sandboxes by itself.
	NoTTL bool
	// NoEntrypoint: the spec's entrypoint is not run, or its end is not the sandbox's.
	NoEntrypoint bool
	// FailedEnds: a main process that ends with another code than 0 leaves an error behind, not a stopped sandbox.
	FailedEnds bool
	// NoTerminals: there are no terminal sessions.
	NoTerminals bool
	// RemoteProcesses: this machine's /proc does not show the processes of sandboxes.
	RemoteProcesses bool
	// RemoteFiles: files cross a network, so the largest are left out.
	RemoteFiles bool
	// NoLateAttach: a session that has ended can't be attached to.
	NoLateAttach bool
	// OneSandbox leaves out the cases that need a sandbox of their own: for a second way of reaching the same ones.
	OneSandbox bool
	// MaxInFlight is how many commands the concurrency cases run at once; 0 means 150.
	MaxInFlight int
	// Slow multiplies all deadlines; 0 means 1.
	Slow int
}

// deadline is for what should take milliseconds: generous, as other work may use the machine.
func (c Config) deadline() time.Duration { return c.times(20 * time.Second) }

func (c Config) times(d time.Duration) time.Duration { return d * time.Duration(max(c.Slow, 1)) }

// testCase is one way to fail.
type testCase struct {
	name   string
	absent func(Config) bool // the declared difference that makes the case meaningless; nil for none
	run    func(t *testing.T, b *box)
}

// Run runs all cases. It ends with a check that nothing of the test's own
// process is left: goroutines, descriptors, children.
func Run(t *testing.T, cfg Config) {
	if cfg.MaxInFlight == 0 {
		cfg.MaxInFlight = 150
	}
	// What is made once per process (pollers, caches) is made before counting begins.
	warmUp(t, cfg)
	before := takeStock()
	t.Run("exec", func(t *testing.T) { runShared(t, cfg, execCases) })
	t.Run("input", func(t *testing.T) { runShared(t, cfg, inputCases) })
	t.Run("output", func(t *testing.T) { runShared(t, cfg, outputCases) })
	t.Run("timeout", func(t *testing.T) { runShared(t, cfg, timeoutCases) })
	t.Run("files", func(t *testing.T) { runShared(t, cfg, fileCases) })
	t.Run("terminal", func(t *testing.T) { runShared(t, cfg, terminalCases) })
	if !cfg.OneSandbox {
		t.Run("terminal_life", func(t *testing.T) { runOwn(t, cfg, terminalLifeCases) })
		t.Run("lifecycle", func(t *testing.T) { runOwn(t, cfg, lifecycleCases) })
		t.Run("share", func(t *testing.T) { runOwn(t, cfg, shareCases) })
	}
	if !t.Failed() {
		// A case that gave up half way leaves its own things.
		before.check(t)
	}
}

func warmUp(t *testing.T, cfg Config) {
	b := newBox(t, cfg)
	b.start(t)
	b.sh(t, "true")
	b.close(t)
}

// runShared runs cases one after the other in one sandbox.
func runShared(t *testing.T, cfg Config, cases []testCase) {
	b := newBox(t, cfg)
	b.start(t)
	defer b.close(t)
	for _, c := range cases {
		if c.absent == nil || !c.absent(cfg) {
			t.Run(c.name, func(t *testing.T) { c.run(t, b) })
		}
	}
}

// runOwn gives each case a sandbox of its own, which the case starts.
func runOwn(t *testing.T, cfg Config, cases []testCase) {
	for _, c := range cases {
		if c.absent == nil || !c.absent(cfg) {
			t.Run(c.name, func(t *testing.T) {
				b := newBox(t, cfg)
				defer b.close(t)
				c.run(t, b)
			})
		}
	}
}

// box is one sandbox under test.
type box struct {
	cfg      Config
	provider core.Provider
	spec     core.Spec
	sb       *core.Sandbox
}

func newBox(t testing.TB, cfg Config) *box {
	return &box{cfg: cfg, provider: cfg.New(t), spec: cfg.Spec}
}

// context ends with the test or after the deadline for quick things.
func (b *box) context(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*b.cfg.deadline())
	t.Cleanup(cancel)
	return ctx
}

func (b *box) start(t testing.TB) {
	t.Helper()
	b.sb = core.NewSandbox(b.provider, b.spec)
	if err := b.sb.Start(b.context(t)); err != nil {
		t.Fatalf("start: %v", err)
	}
}

// close ends what the case left. Run with defer: t.Cleanup would come after the check for leaks.
func (b *box) close(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*b.cfg.deadline())
	defer cancel()
	if b.sb != nil {
		if err := b.sb.Stop(ctx); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	if err := b.provider.Close(ctx); err != nil {
		t.Errorf("close the provider: %v", err)
	}
}

// result is a command's outcome with its output.
type result struct {
	core.ExecResult
	cfg            Config
	stdout, stderr string
	took           time.Duration
}

// run runs a command and collects its output; an error ends the test.
func (b *box) run(t testing.TB, req core.ExecRequest) result {
	t.Helper()
	r, err := b.try(b.context(t), req)
	if err != nil {
		t.Fatalf("exec: %v", err)
	}
	return r
}

func (b *box) try(ctx context.Context, req core.ExecRequest) (result, error) {
	if req.Timeout == 0 {
		req.Timeout = b.cfg.deadline()
	}
	c := core.NewCollector(0)
	defer c.Close()
	began := time.Now()
	res, err := b.sb.Exec(ctx, req, c)
	return result{res, b.cfg, c.Output(core.Stdout).String(), c.Output(core.Stderr).String(), time.Since(began)}, err
}

// sh runs a command line.
func (b *box) sh(t testing.TB, command string) result {
	t.Helper()
	return b.run(t, core.ExecRequest{Command: command})
}

// ok runs a command line that has to succeed, and gives its stdout.
func (b *box) ok(t testing.TB, command string) string {
	t.Helper()
	r := b.sh(t, command)
	r.wantCode(t, 0)
	return r.stdout
}

func (r result) wantCode(t testing.TB, code int) {
	t.Helper()
	if r.ExitCode != code || r.ErrorType != "" {
		t.Fatalf("got %s, want exit code %d", r, code)
	}
}

func (r result) wantTimeout(t testing.TB) {
	t.Helper()
	if r.ErrorType != core.ErrorTypeTimeout || r.ExitCode != core.NoExitCode || r.Reason == "" {
		t.Fatalf("got %s, want a timeout with a reason", r)
	}
}

func (r result) wantStdout(t testing.TB, want string) {
	t.Helper()
	r.wantCode(t, 0)
	if want = r.cfg.told(want); r.stdout != want {
		t.Fatalf("stdout is %s, want %s", short(r.stdout), short(want))
	}
}

// printed tells whether the output is what a command wrote first to stdout and then to stderr, as far as the backend tells.
func (r result) printed(stdout, stderr string) bool {
	if r.cfg.Merged {
		return r.stdout == stdout+stderr
	}
	got := r.stderr
	if r.cfg.AsLines && r.ExitCode != 0 && r.ErrorType == "" {
		// The line more, which stands alone or behind others.
		got = got[:max(strings.LastIndexByte(got, '\n'), 0)]
	}
	return r.stdout == r.cfg.told(stdout) && got == r.cfg.told(stderr)
}

// told is what of an output the backend tells.
func (c Config) told(output string) string {
	if !c.AsLines {
		return output
	}
	return strings.TrimSuffix(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(output), "\n")
}

// markers are numbers that no other process of the machine sleeps for.
var markers atomic.Int64

func init() { markers.Store(40_000_000 + time.Now().UnixNano()%10_000_000*4) }
