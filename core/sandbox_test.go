package core

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is a provider of one sandbox whose failures a test decides.
type scripted struct {
	mu         sync.Mutex
	failCreate error
	failStop   error
	closes     int
	creating   chan struct{} // when set, Create waits for its context
	destroying chan struct{} // when set, Destroy waits for it
	last       ExecRequest
	result     ExecResult
}

var errScripted = errors.New("scripted failure")

func (p *scripted) Name() string                { return "scripted" }
func (p *scripted) Close(context.Context) error { return nil }

func (p *scripted) Create(ctx context.Context, _ Spec) (Instance, error) {
	if p.creating != nil {
		close(p.creating)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if p.failCreate != nil {
		return nil, p.failCreate
	}
	return p, nil
}

func (p *scripted) ID() string { return "box" }

func (p *scripted) Exec(_ context.Context, req ExecRequest, _ Sink) (ExecResult, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = req
	return p.result, nil
}

func (p *scripted) Upload(context.Context, string, string) error   { return nil }
func (p *scripted) Download(context.Context, string, string) error { return nil }
func (p *scripted) Status(context.Context) (Status, error)         { return StatusRunning, nil }
func (p *scripted) Detach()                                        {}

func (p *scripted) Destroy(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closes++
	if p.destroying != nil {
		<-p.destroying
	}
	return p.failStop
}

// TestLifecycleTable walks the table that every implementation of the life cycle is held to.
func TestLifecycleTable(t *testing.T) {
	raw, err := os.ReadFile("../tests/tables/lifecycle.json")
	require.NoError(t, err)
	var table struct {
		Cases []struct {
			Name   string
			Steps  [][2]string
			Closes *int
		}
	}
	require.NoError(t, json.Unmarshal(raw, &table))
	require.NotEmpty(t, table.Cases)
	for _, c := range table.Cases {
		t.Run(c.Name, func(t *testing.T) {
			p := &scripted{}
			s := NewSandbox(p, Spec{})
			for i, step := range c.Steps {
				assert.Equal(t, step[1], lifecycleStep(s, p, step[0]), "step %d: %s", i, step[0])
			}
			if c.Closes != nil {
				assert.Equal(t, *c.Closes, p.closes)
			}
		})
	}
}

func lifecycleStep(s *Sandbox, p *scripted, op string) string {
	ctx := context.Background()
	p.failCreate, p.failStop = nil, nil
	var err error
	switch op {
	case "start!":
		p.failCreate = errScripted
		err = s.Start(ctx)
	case "start":
		err = s.Start(ctx)
	case "exec":
		_, err = s.Exec(ctx, ExecRequest{Command: "true"}, nil)
	case "stop!":
		p.failStop = errScripted
		err = s.Stop(ctx)
	case "stop":
		err = s.Stop(ctx)
	case "status":
		st, serr := s.Status(ctx)
		if serr != nil {
			return serr.Error()
		}
		return string(st)
	}
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errScripted):
		return "error"
	default:
		return string(KindOf(err))
	}
}

func TestConcurrentStopsAreOneStop(t *testing.T) {
	p := &scripted{destroying: make(chan struct{})}
	s := NewSandbox(p, Spec{})
	require.NoError(t, s.Start(context.Background()))
	errs := make(chan error, 8)
	for range 8 {
		go func() { errs <- s.Stop(context.Background()) }()
	}
	close(p.destroying)
	for range 8 {
		assert.NoError(t, <-errs)
	}
	assert.Equal(t, 1, p.closes)
}

func TestStopThatIsGivenUpGoesOn(t *testing.T) {
	p := &scripted{destroying: make(chan struct{})}
	s := NewSandbox(p, Spec{})
	require.NoError(t, s.Start(context.Background()))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.Equal(t, KindCanceled, KindOf(s.Stop(ctx)))
	close(p.destroying)
	require.NoError(t, s.Stop(context.Background()))
	assert.Equal(t, 1, p.closes)
}

func TestStopCancelsAStartUnderWay(t *testing.T) {
	p := &scripted{creating: make(chan struct{})}
	s := NewSandbox(p, Spec{})
	started := make(chan error, 1)
	go func() { started <- s.Start(context.Background()) }()
	<-p.creating
	require.NoError(t, s.Stop(context.Background()))
	assert.ErrorIs(t, <-started, context.Canceled)
	assert.Equal(t, 0, p.closes)
}

func TestPanicInDestroyIsAnErrorAndCanBeRetried(t *testing.T) {
	p := &panicky{}
	s := NewSandbox(p, Spec{})
	require.NoError(t, s.Start(context.Background()))
	err := s.Stop(context.Background())
	assert.Equal(t, KindInternal, KindOf(err))
	p.calm = true
	assert.NoError(t, s.Stop(context.Background()))
}

type panicky struct {
	scripted
	calm bool
}

func (p *panicky) Create(context.Context, Spec) (Instance, error) { return p, nil }

func (p *panicky) Destroy(ctx context.Context) error {
	if !p.calm {
		panic("destroy")
	}
	return nil
}

func TestExecGetsTheSandboxesDefaults(t *testing.T) {
	p := &scripted{}
	s := NewSandbox(p, Spec{Workdir: "/spec"})
	require.NoError(t, s.Start(context.Background()))
	run := func(req ExecRequest) ExecRequest {
		_, err := s.Exec(context.Background(), req, nil)
		require.NoError(t, err)
		return p.last
	}
	got := run(ExecRequest{Command: "x"})
	assert.Equal(t, "/spec", got.Cwd)
	assert.Equal(t, DefaultExecTimeout, got.Timeout)
	s.SetDefaultUser("agent")
	s.SetDefaultWorkdir("/work")
	got = run(ExecRequest{Command: "x", Timeout: Forever})
	assert.Equal(t, [3]any{"/work", "agent", Forever}, [3]any{got.Cwd, got.User, got.Timeout})
	got = run(ExecRequest{Command: "x", Cwd: "/call", User: "0", Timeout: time.Second})
	assert.Equal(t, [3]any{"/call", "0", time.Second}, [3]any{got.Cwd, got.User, got.Timeout})
	s.SetDefaultUser("")
	s.SetDefaultWorkdir("")
	got = run(ExecRequest{Command: "x"})
	assert.Equal(t, [2]any{"/spec", ""}, [2]any{got.Cwd, got.User})
}

func TestBadRequestsNeverReachTheProvider(t *testing.T) {
	p := &scripted{}
	s := NewSandbox(p, Spec{})
	require.NoError(t, s.Start(context.Background()))
	for _, req := range []ExecRequest{
		{Command: "a\x00b"},
		{Command: "x", Argv: []string{"y"}},
		{Argv: []string{""}},
		{Argv: []string{"a", "b\x00"}},
		{Command: "x", Env: map[string]string{"A=B": "c"}},
		{Command: "x", Env: map[string]string{"A": "c\x00"}},
		{Command: "x", Env: map[string]string{"": "c"}},
	} {
		_, err := s.Exec(context.Background(), req, nil)
		assert.Equal(t, KindInvalid, KindOf(err), "%q", req)
	}
	assert.Empty(t, p.last)
}

func TestCapabilitiesThatAreMissingAreNamed(t *testing.T) {
	s := NewSandbox(&scripted{}, Spec{})
	require.NoError(t, s.Start(context.Background()))
	assert.Equal(t, KindNotSupported, KindOf(s.Pause(context.Background())))
	_, err := s.Serialize(context.Background(), "")
	assert.Equal(t, KindNotSupported, KindOf(err))
	_, err = s.Endpoint(context.Background(), 80)
	assert.ErrorContains(t, err, "scripted")
	assert.Equal(t, KindConflict, KindOf(s.Disconnect()))
	_, err = Connect(context.Background(), &scripted{}, nil)
	assert.Equal(t, KindNotSupported, KindOf(err))
}

func TestCommandOfAStoppedSandboxSaysSo(t *testing.T) {
	p := &scripted{result: RuntimeFailure("connection lost"), destroying: make(chan struct{})}
	s := NewSandbox(p, Spec{})
	require.NoError(t, s.Start(context.Background()))
	res, err := s.Exec(context.Background(), ExecRequest{Command: "x"}, nil)
	require.NoError(t, err)
	assert.Equal(t, "connection lost", res.Reason)
}
