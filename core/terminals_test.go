package core

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// talker is a scripted instance with terminals and pauses.
type talker struct {
	scripted
	spec      PTYSpec
	failPause error
	log       []string
	deaf      bool // sessions can't be attached again
}

func (p *talker) Create(context.Context, Spec) (Instance, error) { return p, nil }

func (p *talker) OpenPTY(_ context.Context, spec PTYSpec) (PTYSession, error) {
	p.spec = spec
	return &talk{p: p, attached: true}, nil
}

func (p *talker) AttachPTY(context.Context, string, bool, int64) (PTYSession, error) {
	return &talk{p: p, attached: true}, nil
}

func (p *talker) note(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, what)
}

func (p *talker) Pause(context.Context) error  { p.note("pause"); return p.failPause }
func (p *talker) Resume(context.Context) error { p.note("resume"); return nil }

// talk is a session that only knows whether it is attached. What it does not define no test here calls.
type talk struct {
	PTYSession
	p        *talker
	mu       sync.Mutex
	attached bool
	reason   error
	closed   bool
}

func (s *talk) Suspend() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.attached
	s.attached = false
	s.p.note("suspend")
	return was
}

func (s *talk) Reattach(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.p.note("reattach")
	if s.p.deaf {
		return errScripted
	}
	s.attached = true
	return nil
}

func (s *talk) Closed() bool { return s.closed || s.reason != nil }

func (s *talk) Close(context.Context) error { s.closed = true; return nil }

func (s *talk) Abandon(reason error) { s.reason = reason }

func startTalker(t *testing.T, p *talker) *Sandbox {
	s := NewSandbox(p, Spec{Workdir: "/spec"})
	require.NoError(t, s.Start(context.Background()))
	return s
}

func openTalk(t *testing.T, s *Sandbox) *talk {
	got, err := s.OpenPTY(context.Background(), PTYSpec{})
	require.NoError(t, err)
	return got.(*terminal).PTYSession.(*talk)
}

func TestSessionsGetTheSandboxesDefaults(t *testing.T) {
	p := &talker{}
	s := startTalker(t, p)
	s.SetDefaultUser("agent")
	openTalk(t, s)
	assert.Equal(t, PTYSpec{Cwd: "/spec", User: "agent", Rows: 24, Cols: 80}, p.spec)
	_, err := s.OpenPTY(context.Background(), PTYSpec{Cwd: "/x", User: "0", Rows: 5, Cols: 6})
	require.NoError(t, err)
	assert.Equal(t, PTYSpec{Cwd: "/x", User: "0", Rows: 5, Cols: 6}, p.spec)
	_, err = s.OpenPTY(context.Background(), PTYSpec{Command: "\x00"})
	assert.Equal(t, KindInvalid, KindOf(err))
}

func TestPauseDetachesAndResumeAttachesAgain(t *testing.T) {
	p := &talker{}
	s := startTalker(t, p)
	one, other := openTalk(t, s), openTalk(t, s)
	other.attached = false // by its user, who will attach it again
	require.NoError(t, s.Pause(context.Background()))
	assert.False(t, one.attached)
	assert.Equal(t, []string{"suspend", "suspend", "pause"}, p.log)
	require.NoError(t, s.Resume(context.Background()))
	assert.True(t, one.attached)
	assert.False(t, other.attached)
	assert.Equal(t, []string{"resume", "reattach"}, p.log[3:])
}

func TestFailedPauseLeavesSessionsAttached(t *testing.T) {
	p := &talker{failPause: errScripted}
	s := startTalker(t, p)
	one := openTalk(t, s)
	assert.ErrorIs(t, s.Pause(context.Background()), errScripted)
	assert.True(t, one.attached)
}

func TestFailedSecondPauseLeavesSessionsToTheFirst(t *testing.T) {
	p := &talker{}
	s := startTalker(t, p)
	one := openTalk(t, s)
	require.NoError(t, s.Pause(context.Background()))
	p.failPause = errScripted
	assert.ErrorIs(t, s.Pause(context.Background()), errScripted)
	assert.False(t, one.attached, "the sandbox stands still")
	require.NoError(t, s.Resume(context.Background()))
	assert.True(t, one.attached)
}

func TestSessionThatCannotComeBackIsGivenUp(t *testing.T) {
	p := &talker{deaf: true}
	s := startTalker(t, p)
	one := openTalk(t, s)
	require.NoError(t, s.Pause(context.Background()))
	require.NoError(t, s.Resume(context.Background()))
	assert.ErrorIs(t, one.reason, errScripted)
}

func TestStopEndsSessions(t *testing.T) {
	p := &talker{}
	s := startTalker(t, p)
	one := openTalk(t, s)
	closed, err := s.OpenPTY(context.Background(), PTYSpec{})
	require.NoError(t, err)
	require.NoError(t, closed.Close(context.Background()))
	p.failStop = errScripted
	require.Error(t, s.Stop(context.Background()))
	assert.NoError(t, one.reason, "the sandbox lives on, and so do its sessions")
	p.failStop = nil
	require.NoError(t, s.Stop(context.Background()))
	assert.ErrorIs(t, one.reason, errStopped)
	assert.NoError(t, closed.(*terminal).PTYSession.(*talk).reason)
	_, err = s.OpenPTY(context.Background(), PTYSpec{})
	assert.Equal(t, KindClosed, KindOf(err))
}

func TestSessionsThatEndedAreForgotten(t *testing.T) {
	s := startTalker(t, &talker{})
	for range 3 {
		openTalk(t, s).reason = errors.New("ended")
	}
	openTalk(t, s)
	assert.Len(t, s.terminals.open, 1)
}

func TestProviderWithoutTerminalsIsNamed(t *testing.T) {
	s := NewSandbox(&scripted{}, Spec{})
	_, err := s.OpenPTY(context.Background(), PTYSpec{})
	assert.Equal(t, KindNotStarted, KindOf(err))
	require.NoError(t, s.Start(context.Background()))
	_, err = s.OpenPTY(context.Background(), PTYSpec{})
	assert.Equal(t, KindNotSupported, KindOf(err))
	assert.ErrorContains(t, err, "does not support PTY sessions")
	_, err = s.AttachPTY(context.Background(), "x", true, 0)
	assert.Equal(t, KindNotSupported, KindOf(err))
	assert.ErrorContains(t, err, "does not support re-attaching PTY sessions")
}
