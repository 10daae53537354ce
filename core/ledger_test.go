package core

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// remembered is a provider whose sandboxes outlive processes.
type remembered struct {
	scripted
	found []Found
	wait  time.Duration
}

func (p *remembered) Name() string                          { return "remembered" }
func (p *remembered) Location() string                      { return "tcp://engine:1" }
func (p *remembered) HandoverTimeout() time.Duration        { return p.wait }
func (p *remembered) List(context.Context) ([]Found, error) { return p.found, nil }
func (p *remembered) Reap(context.Context, string) error    { return nil }

func (p *remembered) Serialize(context.Context, Instance, string, Defaults) (map[string]any, error) {
	return map[string]any{}, nil
}

func (p *remembered) Connect(context.Context, map[string]any) (Instance, Defaults, error) {
	return p, Defaults{}, nil
}

func ledgerHome(t *testing.T) (runs string) {
	t.Helper()
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	return filepath.Join(state, "nemo-gym-sandbox", "runs")
}

func newTestLedger(t *testing.T) *Ledger {
	t.Helper()
	l := NewLedger()
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func filesIn(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	return names
}

func TestALedgerLivesAsLongAsThereIsSomethingToNote(t *testing.T) {
	runs := ledgerHome(t)
	l, p := newTestLedger(t), &remembered{}
	s := NewSandbox(p, Spec{TTL: time.Hour, Env: map[string]string{"TOKEN": "s3cret"}}, WithLedger(l))
	assert.Empty(t, filesIn(t, runs))
	require.NoError(t, s.Start(t.Context()))

	names := filesIn(t, runs)
	require.Len(t, names, 1)
	assert.Equal(t, fmt.Sprintf("%s-%d-%s.jsonl", Self().Run, os.Getpid(), Self().Start), filepath.Base(names[0]))
	st, err := os.Stat(names[0])
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), st.Mode())
	raw, err := os.ReadFile(names[0])
	require.NoError(t, err)
	assert.NotContains(t, string(raw), "s3cret")
	assert.Contains(t, string(raw), "tcp://engine:1")

	claims := readLedgers().claims(claimKey{"remembered", "box"})
	require.Len(t, claims, 1)
	assert.Equal(t, Self(), claims[0].owner)
	assert.True(t, claims[0].held)
	assert.WithinDuration(t, time.Now().Add(time.Hour), claims[0].expires, time.Minute)

	require.NoError(t, s.Stop(t.Context()))
	assert.Empty(t, filesIn(t, runs))
}

func TestNothingIsNotedOfWhatDiesWithTheProcess(t *testing.T) {
	runs := ledgerHome(t)
	s := NewSandbox(&scripted{}, Spec{}, WithLedger(newTestLedger(t)))
	require.NoError(t, s.Start(t.Context()))
	assert.Empty(t, filesIn(t, runs))
}

func TestAFailedStopKeepsTheNote(t *testing.T) {
	runs := ledgerHome(t)
	p := &remembered{}
	s := NewSandbox(p, Spec{}, WithLedger(newTestLedger(t)))
	require.NoError(t, s.Start(t.Context()))
	p.failStop = errScripted
	require.Error(t, s.Stop(t.Context()))
	assert.Len(t, filesIn(t, runs), 1)
	p.failStop = nil
	require.NoError(t, s.Stop(t.Context()))
	assert.Empty(t, filesIn(t, runs))
}

// A process that is killed while it writes leaves half a line, which must not hide the others.
func TestATornLineIsIgnored(t *testing.T) {
	runs := ledgerHome(t)
	l, p := newTestLedger(t), &remembered{}
	for _, id := range []string{"a", "b", "c"} {
		l.started(p, id, 0)
	}
	path := filesIn(t, runs)[0]
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	first := strings.Index(string(whole), "\n") + 1
	second := first + strings.Index(string(whole[first:]), "\n") + 1
	for cut := second; cut < len(whole); cut++ {
		require.NoError(t, os.WriteFile(path, whole[:cut], 0o600))
		f, err := readLedger(path)
		require.NoError(t, err)
		require.Equal(t, Self(), f.owner)
		require.Contains(t, f.claims, claimKey{"remembered", "a"}, "cut at %d", cut)
	}
	// And in the middle: a write that found no room, and one that did later.
	torn := append(append([]byte{}, whole[:second]...), `{"event":"star`...)
	require.NoError(t, os.WriteFile(path, torn, 0o600))
	l.torn = true
	l.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	l.started(p, "d", 0)
	f, err := readLedger(path)
	require.NoError(t, err)
	assert.Len(t, f.claims, 2)
	assert.Contains(t, f.claims, claimKey{"remembered", "d"})
}

func TestALedgerDoesNotGrowForEver(t *testing.T) {
	runs := ledgerHome(t)
	l, p := newTestLedger(t), &remembered{}
	l.started(p, "stays", 0)
	for i := range 5000 {
		id := fmt.Sprint("box", i)
		l.started(p, id, 0)
		l.ended(p, id)
	}
	st, err := os.Stat(filesIn(t, runs)[0])
	require.NoError(t, err)
	assert.Less(t, st.Size(), int64(100<<10))
	f, err := readLedger(filesIn(t, runs)[0])
	require.NoError(t, err)
	assert.Len(t, f.claims, 1)
}

func TestALedgerThatCanNotBeWrittenFailsNoStart(t *testing.T) {
	runs := ledgerHome(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(runs), 0o700))
	require.NoError(t, os.WriteFile(runs, nil, 0o600)) // in the folder's place
	s := NewSandbox(&remembered{}, Spec{}, WithLedger(newTestLedger(t)))
	require.NoError(t, s.Start(t.Context()))
	require.NoError(t, s.Stop(t.Context()))
}

// asIf rewrites this process's ledger as another process's.
func asIf(t *testing.T, runs string, o Owner) {
	t.Helper()
	names := filesIn(t, runs)
	require.Len(t, names, 1)
	f, err := readLedger(names[0])
	require.NoError(t, err)
	file, _, err := writeLedger(filepath.Join(runs, ledgerName(o)), o, f.claims)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.NoError(t, os.Remove(names[0]))
}

func survey(t *testing.T, p *remembered) Found {
	t.Helper()
	found, err := Survey(t.Context(), p)
	require.NoError(t, err)
	require.Len(t, found, 1)
	return found[0]
}

func TestWhatMayStillBeTakenUpIsKept(t *testing.T) {
	dead := deadOwner(t)
	box := Found{ID: "box", Provider: "remembered", Owner: dead, OwnerState: OwnerDead, Status: StatusRunning}
	start := func(t *testing.T, p *remembered) *Sandbox {
		s := NewSandbox(p, Spec{}, WithLedger(newTestLedger(t)))
		require.NoError(t, s.Start(t.Context()))
		return s
	}
	t.Run("not handed over", func(t *testing.T) {
		runs := ledgerHome(t)
		p := &remembered{found: []Found{box}, wait: time.Hour}
		start(t, p)
		asIf(t, runs, dead)
		assert.Empty(t, survey(t, p).Kept)
	})
	t.Run("handed over", func(t *testing.T) {
		runs := ledgerHome(t)
		p := &remembered{found: []Found{box}, wait: time.Hour}
		_, err := start(t, p).Serialize(t.Context(), "")
		require.NoError(t, err)
		asIf(t, runs, dead)
		assert.Contains(t, survey(t, p).Kept, "handed over")
		p.found[0].Status = StatusStopped
		assert.Empty(t, survey(t, p).Kept, "nobody can take up what has ended")
	})
	t.Run("handed over long ago", func(t *testing.T) {
		runs := ledgerHome(t)
		p := &remembered{found: []Found{box}, wait: time.Nanosecond}
		_, err := start(t, p).Serialize(t.Context(), "")
		require.NoError(t, err)
		asIf(t, runs, dead)
		assert.Empty(t, survey(t, p).Kept)
	})
	t.Run("taken up, and let go", func(t *testing.T) {
		runs := ledgerHome(t)
		p := &remembered{found: []Found{box}, wait: time.Hour}
		l := newTestLedger(t)
		s, err := Connect(t.Context(), p, nil, WithLedger(l))
		require.NoError(t, err)
		assert.Contains(t, survey(t, p).Kept, "has taken it up")
		require.NoError(t, s.Disconnect())
		assert.Contains(t, survey(t, p).Kept, "handed over")
		asIf(t, runs, dead)
		assert.Contains(t, survey(t, p).Kept, "handed over", "also after the user's end")
	})
	t.Run("taken up by a dead process", func(t *testing.T) {
		runs := ledgerHome(t)
		p := &remembered{found: []Found{box}, wait: time.Hour}
		_, err := Connect(t.Context(), p, nil, WithLedger(newTestLedger(t)))
		require.NoError(t, err)
		asIf(t, runs, dead)
		assert.Empty(t, survey(t, p).Kept)
	})
}

func TestTidyForgetsWhatTheDeadNotedAboutWhatIsGone(t *testing.T) {
	runs := ledgerHome(t)
	l, p := newTestLedger(t), &remembered{found: []Found{{ID: "there", Provider: "remembered"}}}
	l.started(p, "there", 0)
	l.started(p, "gone", 0)
	require.NoError(t, Tidy(t.Context(), p))
	assert.Len(t, readLedgers()[0].claims, 2, "a living process keeps its own")

	asIf(t, runs, deadOwner(t))
	require.NoError(t, Tidy(t.Context(), p))
	require.Len(t, readLedgers(), 1)
	assert.Len(t, readLedgers()[0].claims, 1)
	assert.Contains(t, readLedgers()[0].claims, claimKey{"remembered", "there"})

	p.found = nil
	require.NoError(t, Tidy(t.Context(), p))
	assert.Empty(t, filesIn(t, runs))
}

func TestStrayPiecesOfLedgersAreRemoved(t *testing.T) {
	runs := ledgerHome(t)
	require.NoError(t, os.MkdirAll(runs, 0o700))
	old := time.Now().Add(-time.Hour)
	for _, name := range []string{"a-1-1.jsonl", "a-1-1.jsonl.123.new", "young-1-1.jsonl"} {
		path := filepath.Join(runs, name)
		require.NoError(t, os.WriteFile(path, []byte(`{"event":"pro`), 0o600))
		if !strings.HasPrefix(name, "young") {
			require.NoError(t, os.Chtimes(path, old, old))
		}
	}
	require.NoError(t, Tidy(t.Context(), &remembered{}))
	assert.Equal(t, []string{filepath.Join(runs, "young-1-1.jsonl")}, filesIn(t, runs))
}

func TestWhoIsKeptAndWhoIsNot(t *testing.T) {
	now := time.Now()
	past, future := now.Add(-time.Hour), now.Add(time.Hour)
	for _, c := range []struct {
		why  string
		f    Found
		kept bool
	}{
		{"its owner lives", Found{OwnerState: OwnerAlive, Status: StatusRunning}, true},
		{"its owner lives, and may want to look at it", Found{OwnerState: OwnerAlive, Status: StatusStopped, Expires: past}, true},
		{"its owner lives, but it was paused past its ttl", Found{OwnerState: OwnerAlive, Status: StatusPaused, Expires: past}, false},
		{"its owner can't be seen, but it was paused past its ttl", Found{OwnerState: OwnerUnknown, Status: StatusPaused, Expires: past}, false},
		{"its owner can't be seen", Found{OwnerState: OwnerUnknown, Status: StatusRunning, Expires: future}, true},
		{"its owner is dead", Found{OwnerState: OwnerDead, Status: StatusRunning, Expires: future}, false},
		{"its owner is dead, and so is it", Found{OwnerState: OwnerDead, Leftover: true}, false},
		{"its ttl has only just run out", Found{OwnerState: OwnerAlive, Status: StatusRunning, Expires: now}, true},
	} {
		assert.Equal(t, c.kept, kept(c.f, nil, now) != "", c.why)
	}
}

func BenchmarkNotingAStart(b *testing.B) {
	b.Setenv("XDG_STATE_HOME", b.TempDir())
	l, p := NewLedger(), &remembered{}
	defer func() { _ = l.Close() }()
	for b.Loop() {
		l.started(p, "box", time.Hour)
		l.ended(p, "box")
	}
}
