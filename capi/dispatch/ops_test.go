package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/mem"
)

// counting is a provider that counts what it made and what is left.
type counting struct {
	core.Provider
	made, left, closed *atomic.Int64
	entered            chan struct{} // a create is under way
	finish             chan struct{} // when not nil a create waits for it and does not care for its context
}

type counted struct {
	core.Instance
	c *counting
}

func (c *counting) Create(ctx context.Context, spec core.Spec) (core.Instance, error) {
	if c.finish != nil {
		c.entered <- struct{}{}
		<-c.finish
		ctx = context.WithoutCancel(ctx)
	}
	in, err := c.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	c.made.Add(1)
	c.left.Add(1)
	return &counted{in, c}, nil
}

func (c *counting) Close(ctx context.Context) error {
	c.closed.Add(1)
	return c.Provider.Close(ctx)
}

func (i *counted) Destroy(ctx context.Context) error {
	i.c.left.Add(-1)
	return i.Instance.Destroy(ctx)
}

func newCounting(t *testing.T) (*Library, *counting) {
	c := &counting{made: new(atomic.Int64), left: new(atomic.Int64), closed: new(atomic.Int64), entered: make(chan struct{}, 1)}
	l := newLibrary(t, func(r *core.Registry) {
		factory := mem.NewFactory()
		r.Register("counting", func(raw json.RawMessage) (core.Provider, error) {
			p, err := factory(raw)
			c.Provider = p
			return c, err
		})
	})
	return l, c
}

func TestACancelledCreateLeavesNothing(t *testing.T) {
	l, c := newCounting(t)
	c.finish = make(chan struct{})
	h := newHost(t, l)
	p, err := l.NewProvider("counting", nil)
	require.NoError(t, err)
	id := h.submit(opCreate, object{"provider": p, "spec": object{}})
	<-c.entered
	require.Equal(t, OK, h.b.Cancel(id))
	close(c.finish) // the backend succeeds although nobody wants it any more
	require.EqualValues(t, core.KindCanceled, h.failed(id).Kind)
	require.EqualValues(t, 1, c.made.Load())
	require.Zero(t, c.left.Load())
	require.Zero(t, h.stats().Sandboxes)
}

func TestACreateWhoseBridgeIsGoneLeavesNothing(t *testing.T) {
	l, c := newCounting(t)
	c.finish = make(chan struct{})
	h := newHost(t, l)
	p, err := l.NewProvider("counting", nil)
	require.NoError(t, err)
	h.submit(opCreate, object{"provider": p, "spec": object{}})
	<-c.entered
	require.Equal(t, OK, l.CloseBridge(h.handle))
	close(c.finish)
	l.running.Wait()
	require.EqualValues(t, 1, c.made.Load())
	require.Zero(t, c.left.Load())
	require.Zero(t, h.stats().Sandboxes)
}

func TestAResultThatCannotBeToldIsTakenBack(t *testing.T) {
	l, c := newCounting(t)
	h := newHost(t, l)
	p, err := l.NewProvider("counting", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	o := &operation{bridge: h.b, id: 1, ctx: ctx, cancel: cancel}
	req, err := json.Marshal(object{"provider": p, "spec": object{}})
	require.NoError(t, err)
	o.run(func(o *operation, req []byte) (reply, error) {
		rep, err := on(create)(o, req)
		l.CloseBridge(h.handle) // between the success and its report
		return rep, err
	}, req)
	require.EqualValues(t, 1, c.made.Load())
	require.Zero(t, c.left.Load())
	require.Zero(t, h.stats().Sandboxes)
}

func TestReleaseDetachesAndCloses(t *testing.T) {
	l, c := newCounting(t)
	h := newHost(t, l)
	p, err := l.NewProvider("counting", nil)
	require.NoError(t, err)
	var made sandboxReply
	h.run(opCreate, object{"provider": p, "spec": object{}}, &made)
	require.Equal(t, OK, l.Release(made.Sandbox))
	require.Equal(t, OK, l.Release(made.Sandbox))
	require.Equal(t, OK, l.Release(p))
	l.running.Wait()
	require.EqualValues(t, 1, c.left.Load(), "a sandbox that was let go of is not ended")
	require.EqualValues(t, 1, c.closed.Load())
	require.EqualValues(t, core.KindClosed, h.fail(opStatus, object{"sandbox": made.Sandbox}).Kind)
	require.EqualValues(t, core.KindClosed, h.fail(opCreate, object{"provider": p}).Kind)
	require.Equal(t, ErrBadHandle, l.Release(h.handle), "bridges are closed, not released")
}

func TestTheLifeOfASandbox(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	var made providerReply
	h.run(opProviderNew, object{"name": "mem", "config": object{"default_timeout_s": 5}}, &made)
	var sb sandboxReply
	h.run(opCreate, object{"provider": made.Provider, "spec": object{
		"workdir": "/w", "env": object{"A": "1"}, "files": [][2]string{{"f", "text"}}, "ports": []int{80},
		"resources": object{"cpu": 1.5, "memory_mib": 10}, "ttl_s": 60, "sidecars": []object{{"name": "s", "image": "i"}},
	}}, &sb)
	require.NotEmpty(t, sb.ID)
	var st statusReply
	h.run(opStatus, object{"sandbox": sb.Sandbox}, &st)
	require.Equal(t, core.StatusRunning, st.Status)
	h.run(opPause, object{"sandbox": sb.Sandbox}, nil)
	h.run(opStatus, object{"sandbox": sb.Sandbox}, &st)
	require.Equal(t, core.StatusPaused, st.Status)
	h.run(opResume, object{"sandbox": sb.Sandbox}, nil)
	var ep endpointReply
	h.run(opEndpoint, object{"sandbox": sb.Sandbox, "port": 80}, &ep)
	require.Contains(t, ep.URL, sb.ID)

	dir := t.TempDir()
	local := filepath.Join(dir, "in")
	require.NoError(t, os.WriteFile(local, []byte("data"), 0o600))
	h.run(opUpload, object{"sandbox": sb.Sandbox, "local": local, "remote": "up"}, nil)
	h.run(opDownload, object{"sandbox": sb.Sandbox, "remote": "/w/up", "local": filepath.Join(dir, "a/out")}, nil)
	got, err := os.ReadFile(filepath.Join(dir, "a/out"))
	require.NoError(t, err)
	require.Equal(t, "data", string(got))
	gone := h.fail(opDownload, object{"sandbox": sb.Sandbox, "remote": "nowhere", "local": local})
	require.EqualValues(t, core.KindNotFound, gone.Kind)
	require.Contains(t, gone.Message, "nowhere")
	require.Equal(t, "mem", gone.Provider)
	require.Equal(t, sb.ID, gone.SandboxID)

	h.run(opSetDefaults, object{"sandbox": sb.Sandbox, "user": "me", "workdir": "/d"}, nil)
	var d map[string]any
	h.run(opSerialize, object{"sandbox": sb.Sandbox}, &d)
	var other sandboxReply
	h.run(opConnect, object{"provider": made.Provider, "descriptor": d}, &other)
	r := h.result(h.submit(opExec, object{"sandbox": other.Sandbox, "command": "pwd; whoami; env A; cat /w/f"}))
	require.Equal(t, "/d\nme\n1\ntext", string(r.out))
	require.EqualValues(t, core.KindConflict, h.fail(opDisconnect, object{"sandbox": sb.Sandbox}).Kind)
	h.run(opDisconnect, object{"sandbox": other.Sandbox}, nil)

	h.run(opStop, object{"sandbox": sb.Sandbox}, nil)
	h.run(opStop, object{"sandbox": sb.Sandbox}, nil)
	h.run(opStatus, object{"sandbox": sb.Sandbox}, &st)
	require.Equal(t, core.StatusStopped, st.Status)
	require.EqualValues(t, core.KindClosed, h.fail(opExec, object{"sandbox": sb.Sandbox, "command": "true"}).Kind)
	h.run(opProviderClose, object{"provider": made.Provider}, nil)
	h.run(opProviderClose, object{"provider": made.Provider}, nil)
}

func TestBadRequests(t *testing.T) {
	l := newLibrary(t)
	h := newHost(t, l)
	p, sb := h.sandbox("{}")
	for name, c := range map[string]struct {
		op   uint32
		req  any
		kind core.Kind
	}{
		"not an object":    {opExec, "x", core.KindInvalid},
		"wrong type":       {opExec, object{"sandbox": sb, "env": object{"A": 1}}, core.KindInvalid},
		"stream mode":      {opExec, object{"sandbox": sb, "command": "true", "stdout": "nowhere"}, core.KindInvalid},
		"timeout":          {opExec, object{"sandbox": sb, "command": "true", "timeout_s": 0}, core.KindInvalid},
		"negative timeout": {opExec, object{"sandbox": sb, "command": "true", "timeout_s": -2}, core.KindInvalid},
		"NUL":              {opExec, object{"sandbox": sb, "command": "a\x00b"}, core.KindInvalid},
		"provider handle":  {opExec, object{"sandbox": p, "command": "true"}, core.KindClosed},
		"sandbox handle":   {opCreate, object{"provider": sb}, core.KindClosed},
		"ttl":              {opCreate, object{"provider": p, "spec": object{"ttl_s": -1}}, core.KindInvalid},
		"workdir":          {opCreate, object{"provider": p, "spec": object{"workdir": "w"}}, core.KindInvalid},
		"config key":       {opProviderNew, object{"name": "mem", "config": object{"nope": 1}}, core.KindUnknownKey},
		"provider name":    {opProviderNew, object{"name": "nope"}, core.KindInvalid},
		"connect":          {opConnect, object{"provider": p, "descriptor": object{"sandbox_id": "nope"}}, core.KindNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			require.EqualValues(t, c.kind, h.fail(c.op, c.req).Kind)
		})
	}
	require.Zero(t, h.stats().Streams)
}

func TestLogRecordsComeAsEventsAndAreBounded(t *testing.T) {
	l := newLibrary(t)
	log := slog.New(l.LogHandler(slog.LevelInfo))
	log.Info("lost: nobody is there")
	h := newHost(t, l)
	log.Debug("too quiet")
	log.With("a", 1).WithGroup("g").Warn("careful", "b", "two", slog.Group("h", "c", 3))
	h.turn()
	require.Equal(t, []string{`{"level":4,"message":"careful a=1 g.b=two g.h.c=3"}`}, h.logs)
	for range maxLogs + 100 {
		log.Error(strings.Repeat("x", 2*maxMessage))
	}
	for h.readable(0) {
		h.turn()
	}
	require.Len(t, h.logs, maxLogs+1)
	log.Info("again")
	h.turn()
	require.True(t, bytes.Contains([]byte(h.logs[maxLogs+1]), []byte("again")))
}
