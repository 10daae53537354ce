package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/nemo-gym/nemo_gym_sandbox/agent"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// agentRunner works through the agent inside.
type agentRunner struct {
	i      *instance
	client *agent.Client
	relay  *relay // nil over a socket
}

func (r *agentRunner) exec(ctx context.Context, req core.ExecRequest, sink core.Sink) (core.ExecResult, error) {
	return r.client.Exec(ctx, req, sink)
}

func (r *agentRunner) upload(ctx context.Context, localPath, remotePath string) error {
	return r.client.Upload(ctx, localPath, remotePath)
}

func (r *agentRunner) download(ctx context.Context, remotePath, localPath string) error {
	return r.client.Download(ctx, remotePath, localPath)
}

func (r *agentRunner) handover(ctx context.Context, d core.Defaults) error {
	if err := r.client.SetDefaults(ctx, d); err != nil {
		return err
	}
	return r.client.Handover(ctx)
}

func (r *agentRunner) close() {
	r.client.Close()
	if r.relay != nil {
		r.relay.close()
	}
}

// agentContainer is a container whose process 1 is the agent. It makes the
// sandbox's folder on this machine, which inst then owns.
func (p *Provider) agentContainer(ctx context.Context, pl *plan, w way, inst *instance) (containerSpec, error) {
	s := pl.container(&p.cfg, w)
	serve := agent.ServeConfig{
		Socket:     agentRun + "/agent.sock",
		TTL:        pl.spec.TTL,
		Orphan:     seconds(p.cfg.Create.OrphanTimeoutS),
		Handover:   seconds(p.cfg.Create.HandoverTimeoutS),
		User:       pl.user,
		Workdir:    pl.workdir,
		KeepHome:   pl.homeSet(),
		SingleUser: pl.single,
		Entrypoint: pl.spec.Entrypoint,
		OOMScore:   p.oomScore() != 0,
		KillGrace:  seconds(p.cfg.Exec.KillGraceS),
	}
	if p.cfg.Exec.ExecShell != nil {
		serve.Shell = *p.cfg.Exec.ExecShell
	}
	if _, err := agent.BinaryHash(pl.engine.Arch); err != nil {
		return s, &unsuited{err}
	}
	var err error
	if inst.host, err = agent.NewHostDir(pl.name); err != nil {
		return s, err
	}
	if err := inst.host.Sign(agent.Signature{Owner: core.Self(), Provider: providerName, Location: p.Location()}); err != nil {
		return s, err
	}
	if w == waySocket {
		path, err := agent.Binary(pl.engine.Arch)
		if err != nil {
			return s, err
		}
		serve.TokenFile = agentRun + "/" + inst.host.TokenName()
		serve.Socket = agentRun + "/" + inst.host.SocketName()
		s.Host.Mounts = append(s.Host.Mounts,
			bindMount(path, agentBinary, true),
			bindMount(inst.host.RunDir(), agentRun, false))
	} else {
		name, err := p.agentVolume(ctx, pl)
		if err != nil {
			return s, err
		}
		serve.Claim = true
		s.Host.Mounts = append(s.Host.Mounts, mount.Mount{
			Type: mount.TypeVolume, Source: name, Target: agentDir, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true},
		})
		mode := "0755"
		if pl.single {
			mode = "1777" // the agent is another user than the one that owns the mount
		}
		s.Host.Tmpfs = mergeLabels(s.Host.Tmpfs, map[string]string{agentRun: "rw,nosuid,nodev,noexec,size=64k,mode=" + mode})
	}
	s.Config.User = "0:0"
	if pl.single {
		s.Config.User = "" // the image's: nobody could become another one later
	}
	s.Config.Entrypoint = append([]string{agentBinary}, serve.Args()...)
	s.Config.Cmd = []string{}
	s.Host.OomScoreAdj = p.oomScore()
	return s, nil
}

// useAgent connects to the agent of a container that has just been started.
func (i *instance) useAgent(ctx context.Context, w way, exit <-chan int64, last bool) error {
	if w == waySocket && !last {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, unprovenTimeout, errNoHandshake)
		defer cancel()
	}
	alive := func(ctx context.Context) error { return i.alive(ctx, exit) }
	err := i.connectAgent(ctx, w, w == wayStream, alive)
	if err != nil && errors.Is(context.Cause(ctx), errNoHandshake) {
		return &unsuited{fmt.Errorf("the agent runs, but does not answer over the mounted socket: %w", err)}
	}
	return err
}

var errNoHandshake = errors.New("no answer over the socket in time")

// alive reports a container that ended before its agent answered.
func (i *instance) alive(ctx context.Context, exit <-chan int64) error {
	select {
	case code, ok := <-exit:
		if !ok {
			return nil // not known; the wait goes on
		}
		err := fmt.Errorf("the container ended with code %d before its agent answered", code)
		if code == 126 || code == 127 {
			return &unsuited{err}
		}
		return err
	default:
		return ctx.Err()
	}
}

// connectAgent opens the way to the agent. claim: it has no token yet.
func (i *instance) connectAgent(ctx context.Context, w way, claim bool, alive func(context.Context) error) error {
	o := agent.Options{
		Token:     i.host.Token,
		Claim:     claim,
		Provider:  providerName,
		SandboxID: i.name,
		KillGrace: seconds(i.p.cfg.Exec.KillGraceS),
		Alive:     alive,
	}
	r := &agentRunner{i: i}
	var connected atomic.Pointer[agent.Client]
	o.Diagnose = func(ctx context.Context) agent.Diagnosis {
		ask := i.diagnose
		if c := connected.Load(); c != nil {
			select {
			case <-c.Lost():
				ask = i.diagnoseEnd
			default:
			}
		}
		v := ask(ctx)
		return agent.Diagnosis{Status: v.status, Reason: v.reason}
	}
	if w == waySocket {
		o.Dial, o.PassFDs, o.Seal = i.host.Dial, true, i.host.Seal
	} else {
		r.relay = newRelay(i.p.engine, i.name)
		o.Dial = r.relay.dial
	}
	var err error
	if r.client, err = agent.Connect(ctx, o); err != nil {
		if r.relay != nil {
			r.relay.close()
		}
		return err
	}
	connected.Store(r.client)
	i.run = r
	return nil
}

// relay reaches the agent over the stream of an engine exec that runs the
// agent's program as a relay. It is opened again when it was lost.
type relay struct {
	engine engine
	name   string
	life   context.Context // ends with close
	end    context.CancelFunc
	turn   chan struct{} // holds one entry while somebody uses what is below

	mux    *agent.Mux
	stream *relayStream
	closed bool
}

func newRelay(e engine, name string) *relay {
	r := &relay{engine: e, name: name, turn: make(chan struct{}, 1)}
	r.life, r.end = context.WithCancel(context.Background())
	return r
}

// dial opens a stream to the agent.
func (r *relay) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(r.life, func() { cancel(net.ErrClosed) })()
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if r.closed {
		return nil, net.ErrClosed
	}
	if r.mux != nil {
		select {
		case <-r.mux.Done():
			r.drop()
		default:
		}
	}
	if r.mux == nil {
		if err := r.open(ctx); err != nil {
			return nil, err
		}
	}
	conn, err := r.mux.Dial(ctx)
	if err != nil {
		if said := r.stream.complaint(); said != "" {
			err = fmt.Errorf("%w: %s", err, said)
		}
		r.drop()
	}
	return conn, err
}

func (r *relay) open(ctx context.Context) error {
	id, err := r.engine.ExecCreate(ctx, r.name, container.ExecOptions{
		User:        "0:0",
		Cmd:         append([]string{agentBinary}, agent.ConnectArgs(agentRun+"/agent.sock")...),
		AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return fmt.Errorf("open a stream into the container: %w", err)
	}
	stream, err := r.engine.ExecAttach(ctx, id)
	if err != nil {
		return fmt.Errorf("open a stream into the container: %w", err)
	}
	r.stream = newRelayStream(stream)
	if r.mux, err = agent.NewMux(r.stream); err != nil {
		_ = r.stream.Close()
		<-r.stream.done
		return err
	}
	return nil
}

// drop lets go of the stream. The caller has the turn.
func (r *relay) drop() {
	if r.mux != nil {
		_ = r.mux.Close()
		<-r.stream.done
		r.mux = nil
	}
}

// close ends the relay and the dials under way.
func (r *relay) close() {
	r.end()
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.closed = true
	r.drop()
}

// relayStream is an exec's stream without the engine's framing. What the relay
// complains about on its standard error is kept for messages.
type relayStream struct {
	exec *execStream
	out  *io.PipeReader // what the relay printed
	done chan struct{}  // closed when nothing more is read

	mu   sync.Mutex
	said []byte
}

func newRelayStream(exec *execStream) *relayStream {
	out, in := io.Pipe()
	s := &relayStream{exec: exec, out: out, done: make(chan struct{})}
	go func() { // ends with the exec's stream, which Close drops
		defer close(s.done)
		_, err := stdcopy.StdCopy(in, complaints{s}, exec)
		_ = in.CloseWithError(err)
	}()
	return s
}

func (s *relayStream) Read(p []byte) (int, error)  { return s.out.Read(p) }
func (s *relayStream) Write(p []byte) (int, error) { return s.exec.Write(p) }

// Close ends the relay, which ends with its standard input.
func (s *relayStream) Close() error {
	err := s.exec.Close()
	_ = s.out.Close()
	return err
}

func (s *relayStream) complaint() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return oneLine(string(s.said))
}

// complaints keeps the beginning of a standard error.
type complaints struct{ s *relayStream }

func (c complaints) Write(p []byte) (int, error) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	const most = 4 << 10
	c.s.said = append(c.s.said, p[:min(len(p), most-len(c.s.said))]...)
	return len(p), nil
}

var _ runner = (*agentRunner)(nil)
