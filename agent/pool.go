package agent

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// maxIdle is how many streams wait for the next operation right after a burst.
	maxIdle = 64
	// idleFor is how long they wait; one stays, so that the next command finds it.
	idleFor = 2 * time.Second
)

// pool keeps authenticated streams that no operation uses.
type pool struct {
	dial func(context.Context) (*wire.Stream, error)

	mu     sync.Mutex
	used   map[*wire.Stream]struct{}
	idle   []*wire.Stream // most recently used last
	trim   *time.Timer
	closed bool
}

// get gives an idle stream, or a new one. Whoever gets it hands it to put or drop.
func (p *pool) get(ctx context.Context) (st *wire.Stream, pooled bool, err error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		st = p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.used[st] = struct{}{}
		p.mu.Unlock()
		return st, true, nil
	}
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, false, errPoolClosed()
	}
	if st, err = p.dial(ctx); err != nil {
		return nil, false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = st.Close()
		return nil, false, errPoolClosed()
	}
	p.used[st] = struct{}{}
	return st, false, nil
}

func errPoolClosed() error {
	return core.Errorf(core.KindClosed, "", "the sandbox has been stopped or disconnected")
}

// put takes a stream back whose operation has ended cleanly.
func (p *pool) put(st *wire.Stream) {
	if st.SetDeadline(time.Time{}) != nil {
		p.drop(st)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, st)
	if p.closed || len(p.idle) >= maxIdle {
		_ = st.Close()
		return
	}
	p.idle = append(p.idle, st)
	if len(p.idle) > 1 && p.trim == nil {
		p.trim = time.AfterFunc(idleFor, p.shrink)
	}
}

// drop closes a stream whose operation has not ended cleanly.
func (p *pool) drop(st *wire.Stream) {
	p.mu.Lock()
	delete(p.used, st)
	p.mu.Unlock()
	_ = st.Close()
}

func (p *pool) shrink() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trim = nil
	if len(p.idle) > 1 {
		for _, st := range p.idle[:len(p.idle)-1] {
			_ = st.Close()
		}
		p.idle = p.idle[len(p.idle)-1:]
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.trim != nil {
		p.trim.Stop()
	}
	for _, st := range p.idle {
		_ = st.Close()
	}
	p.idle = nil
	// Whoever reads these sees the end; the agent then kills their commands.
	for st := range p.used {
		_ = st.Conn.Close()
	}
}

// oneLine makes an untrusted text fit into a message.
func oneLine(s string) string {
	return clip(strings.Join(strings.Fields(strings.ToValidUTF8(s, "?")), " "))
}
