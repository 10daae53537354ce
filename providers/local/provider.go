package local

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// provider makes sandboxes on this machine.
type provider struct {
	cfg   config
	bwrap string // path of bubblewrap, "" when sandboxes are not isolated
	err   error  // why no sandbox can be made
	slots slots
}

var (
	warnUnisolated sync.Once
	clearOnce      sync.Once
)

// New makes the provider from its configuration block; it is a core.Factory.
func New(raw json.RawMessage) (core.Provider, error) {
	cfg, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	p := &provider{cfg: cfg, slots: sharedSlots(cfg.Concurrency)}
	if cfg.Isolation != isolationNone {
		p.bwrap, err = bubblewrap(cfg.Network)
	}
	switch {
	case err == nil:
	case cfg.Isolation == isolationBwrap:
		p.err = isolationError(err)
	case cfg.Network == networkNone:
		p.err = isolationError(fmt.Errorf("network none needs it; %w", err))
	default:
		warnUnisolated.Do(func() {
			slog.Warn(fmt.Sprintf("THE LOCAL PROVIDER RUNS COMMANDS WITHOUT ISOLATION, with all rights of this process: %v. "+
				"To accept that without this warning set isolation to none (or %s=none).", err, isolationEnv))
		})
	}
	clearOnce.Do(clearLeftovers)
	return p, nil
}

// Name implements core.Provider.
func (p *provider) Name() string { return name }

// DefaultExecTimeout implements core.DefaultTimeouter.
func (p *provider) DefaultExecTimeout() time.Duration { return seconds(p.cfg.DefaultTimeoutS) }

// HandoverTimeout implements core.HandoverTimeouter.
func (p *provider) HandoverTimeout() time.Duration { return seconds(p.cfg.HandoverTimeoutS) }

// MaxOutputBytes implements core.OutputLimiter.
func (p *provider) MaxOutputBytes() int64 { return p.cfg.MaxOutputBytes }

// Close implements core.Provider. The provider holds nothing of its own.
func (p *provider) Close(context.Context) error { return nil }

// defaultReadyTimeout bounds the start of an agent, which takes some 20 ms.
const defaultReadyTimeout = 30 * time.Second

// cleanupTimeout bounds the removal of a sandbox whose create failed.
const cleanupTimeout = 15 * time.Second

// Create implements core.Provider.
func (p *provider) Create(ctx context.Context, spec core.Spec) (core.Instance, error) {
	if p.err != nil {
		return nil, p.err
	}
	if err := p.checkSpec(spec); err != nil {
		return nil, err
	}
	id, err := newID()
	if err != nil {
		return nil, err
	}
	warnAbout(id, spec)
	ready := spec.ReadyTimeout
	if ready == 0 {
		ready = defaultReadyTimeout
	}
	startCtx, cancel := context.WithTimeoutCause(ctx, ready, fmt.Errorf("the sandbox was not ready within %gs", ready.Seconds()))
	defer cancel()
	in, err := p.create(startCtx, id, spec)
	for try := 1; err != nil && try < startTries && startCtx.Err() == nil && mountsChanged(err); try++ {
		in, err = p.create(startCtx, id, spec)
	}
	if err != nil {
		kind := core.KindCreate
		if ctx.Err() != nil {
			kind = core.KindCanceled
		}
		return nil, core.WithSandbox(err, kind, "create", name, id)
	}
	return in, nil
}

// startTries bounds the starts of a sandbox while this machine's mounts come and go.
const startTries = 8

// mountsChanged tells whether bubblewrap failed because a mount vanished while it went through them, as happens where
// containers start and stop at the same time. Nothing of the sandbox has run then.
func mountsChanged(err error) bool {
	return strings.Contains(err.Error(), "bwrap: ") && strings.Contains(err.Error(), "Unable to apply mount flags: remount")
}

func (p *provider) create(ctx context.Context, id string, spec core.Spec) (_ *instance, err error) {
	binary, err := agent.Binary(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	dir, err := agent.NewHostDir(id)
	if err != nil {
		return nil, fmt.Errorf("make the sandbox's folder: %w", err)
	}
	in := &instance{provider: p, id: id, dir: dir, rec: record{
		Owner: core.Self(), Created: time.Now().UTC(), TTLS: spec.TTL.Seconds(),
		Isolated: p.bwrap != "", Network: p.cfg.Network, Workspace: spec.Workdir,
	}}
	defer func() {
		if err != nil {
			in.abandon(ctx)
		}
	}()

	if spec.Workdir != "" {
		in.made, err = makeWorkdir(spec.Workdir)
	} else {
		in.rec.Workspace, err = makeWorkspace(p.cfg.workspaceRoot(), id)
		in.rec.Owned = err == nil
	}
	if err != nil {
		return nil, err
	}
	if err := in.rec.save(dir.Path); err != nil {
		return nil, err
	}
	argv, err := p.argv(in, binary, spec)
	if err != nil {
		return nil, err
	}
	if in.proc, err = start(ctx, argv, environ(p.cfg.InheritEnv, spec.Env), in.logPath(), in.rec.Isolated); err != nil {
		return nil, in.explain(err)
	}
	in.rec.Agent = in.proc.agent
	if err := in.rec.save(dir.Path); err != nil {
		return nil, err
	}
	options := in.options(p.cfg)
	options.Seal = dir.Seal
	if in.client, err = agent.Connect(ctx, options); err != nil {
		return nil, in.explain(err)
	}
	return in, in.client.WriteFiles(ctx, spec.Files)
}

// checkSpec refuses what a sandbox on this machine can't be.
func (p *provider) checkSpec(spec core.Spec) error {
	if len(spec.Sidecars) > 0 {
		return core.Errorf(core.KindNotSupported, "create", "provider local does not support sidecars")
	}
	if spec.Workdir != "" && p.bwrap != "" {
		return checkWorkdir(spec.Workdir)
	}
	return nil
}

// argv is the command line of a sandbox's root process.
func (p *provider) argv(in *instance, binary string, spec core.Spec) ([]string, error) {
	serve := agent.ServeConfig{
		TTL:        spec.TTL,
		Orphan:     seconds(p.cfg.OrphanTimeoutS),
		Handover:   seconds(p.cfg.HandoverTimeoutS),
		Workdir:    in.rec.Workspace,
		Shell:      p.shell(),
		KeepHome:   true,
		SingleUser: true,
		Entrypoint: spec.Entrypoint,
		KillGrace:  seconds(p.cfg.KillGraceS),
	}
	if p.bwrap == "" {
		serve.Socket = in.dir.RunDir() + "/" + in.dir.SocketName()
		serve.TokenFile = in.dir.RunDir() + "/" + in.dir.TokenName()
		serve.Subreaper = true
		return append([]string{binary}, serve.Args()...), nil
	}
	serve.Socket = insideRunDir + "/" + in.dir.SocketName()
	serve.TokenFile = insideRunDir + "/" + in.dir.TokenName()
	state, err := core.StateDir()
	if err != nil {
		return nil, err
	}
	v := view{
		workdir: in.rec.Workspace, tmp: in.path(tmpName), varTmp: in.path(varTmpName),
		runDir: in.dir.RunDir(), agent: binary, stateDir: state,
	}
	for _, dir := range []string{v.tmp, v.varTmp} {
		if err := makeTmp(dir); err != nil {
			return nil, fmt.Errorf("make the sandbox's own /tmp: %w", err)
		}
	}
	return append([]string{p.bwrap}, bwrapArgs(p.cfg.Network, v, serve.Args())...), nil
}

// shell is the configured one; where the default one is missing the agent finds another.
func (p *provider) shell() string {
	if p.cfg.Shell == defaultShell {
		if _, err := os.Stat(defaultShell); err != nil {
			return ""
		}
	}
	return p.cfg.Shell
}

func newID() (string, error) {
	var b [6]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	return name + "-" + hex.EncodeToString(b[:]), nil
}
