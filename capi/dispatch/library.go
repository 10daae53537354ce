package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// undoTimeout bounds taking back what nobody can be told of.
	undoTimeout = 30 * time.Second
	// releaseTimeout bounds closing a provider whose owner has gone.
	releaseTimeout = 10 * time.Second
)

// Library is all state behind the C functions.
type Library struct {
	table     table
	registry  *core.Registry
	ledger    *core.Ledger   // what this process uses, for those who come after its death
	testHooks bool           // NGS_TEST_HOOKS=1: operations that provoke faults are allowed
	running   sync.WaitGroup // operations and releases under way

	mu      sync.Mutex
	bridges []*Bridge // oldest first
	closed  bool

	panics    atomic.Int64
	lastPanic atomic.Pointer[string]
}

// New makes a library that serves the providers of a registry.
func New(registry *core.Registry) *Library {
	return &Library{registry: registry, ledger: core.NewLedger(), testHooks: os.Getenv("NGS_TEST_HOOKS") == "1"}
}

// safeGo starts a goroutine whose panic ends neither it silently nor the process: it is recorded.
func (l *Library) safeGo(f func()) {
	go func() {
		_ = l.guard(func() error { f(); return nil }) // a panic is in the statistics, and f has no other failure
	}()
}

// guard turns a panic of f into an error and records it.
func (l *Library) guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = l.Recovered(r)
		}
	}()
	return f()
}

// Recovered records a panic that was caught and gives the error for it.
func (l *Library) Recovered(r any) error {
	text := fmt.Sprint(r)
	full := text + "\n" + string(debug.Stack())
	l.lastPanic.Store(&full)
	l.panics.Add(1)
	return &core.Error{Kind: core.KindInternal, Err: &panicError{text: text}}
}

// NewBridge opens a bridge.
func (l *Library) NewBridge() (Handle, Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, ErrClosed
	}
	b, err := newBridge(l)
	if err != nil {
		return 0, ErrAgain
	}
	if b.handle = l.table.add(tagBridge, b); b.handle == 0 {
		b.close()
		return 0, ErrAgain
	}
	l.bridges = append(l.bridges, b)
	return b.handle, OK
}

// Bridge finds an open bridge.
func (l *Library) Bridge(h Handle) (*Bridge, Code) {
	if b, ok := lookup[*Bridge](&l.table, h); ok {
		return b, OK
	}
	return nil, ErrBadHandle
}

// CloseBridge closes a bridge; one that is closed already is no error.
func (l *Library) CloseBridge(h Handle) Code {
	if b, ok := lookup[*Bridge](&l.table, h); ok {
		b.close()
	}
	return OK
}

func (l *Library) forget(b *Bridge) {
	l.table.remove(b.handle)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.bridges {
		if o == b {
			l.bridges = append(l.bridges[:i:i], l.bridges[i+1:]...)
			return
		}
	}
}

// NewProvider makes a provider. The error is for Describe.
func (l *Library) NewProvider(name string, config []byte) (Handle, error) {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return 0, core.Errorf(core.KindClosed, "provider", "the sandbox library has been shut down")
	}
	var p core.Provider
	err := l.guard(func() (err error) {
		p, err = l.registry.New(name, json.RawMessage(config))
		return err
	})
	if err != nil {
		return 0, core.WithSandbox(err, core.KindInvalid, "", name, "")
	}
	h := l.table.add(tagProvider, p)
	if h == 0 {
		return 0, core.Errorf(core.KindInternal, "provider", "too many objects are open")
	}
	return h, nil
}

// Describe gives an error as a stable code and the JSON that DONE events carry.
func Describe(err error) (Code, []byte) { return describe(err) }

// Release lets go of a sandbox, provider or terminal that its owner dropped without an operation. It does not wait: a
// sandbox or terminal is detached from and lives on by its own rules, a provider is closed in the background. Idempotent.
func (l *Library) Release(h Handle) Code {
	if l.table.get(h) == nil {
		return OK
	}
	switch v := l.table.get(h).(type) {
	case *core.Sandbox:
		l.table.remove(h)
		l.running.Add(1)
		l.safeGo(func() {
			defer l.running.Done()
			v.Release()
		})
	case *terminal:
		v.letGo()
	case core.Provider:
		l.table.remove(h)
		l.running.Add(1)
		l.safeGo(func() {
			defer l.running.Done()
			ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
			defer cancel()
			_ = v.Close(ctx) // its owner has gone
		})
	default:
		return ErrBadHandle
	}
	return OK
}

// StreamRead copies what a stream has; 0 means nothing yet, and one READABLE event will tell when there is.
func (l *Library) StreamRead(h Handle, p []byte) (int, Code) {
	s, ok := lookup[*hostStream](&l.table, h)
	if !ok {
		return 0, ErrBadHandle
	}
	if len(p) == 0 {
		return 0, ErrInvalid
	}
	return s.read(p[:min(len(p), maxCopy)])
}

// StreamWrite takes what there is room for; less than all means that one WRITABLE event will tell when there is more.
func (l *Library) StreamWrite(h Handle, p []byte) (int, Code) {
	s, ok := lookup[*hostStream](&l.table, h)
	if !ok {
		return 0, ErrBadHandle
	}
	return s.write(p)
}

// StreamCloseWrite tells the command that its input has ended.
func (l *Library) StreamCloseWrite(h Handle) Code {
	s, ok := lookup[*hostStream](&l.table, h)
	if !ok {
		return ErrBadHandle
	}
	return s.closeWrite()
}

// StreamError gives, as the JSON that DONE events carry, why the last read or write of a stream failed; nil when none did.
func (l *Library) StreamError(h Handle) ([]byte, Code) {
	s, ok := lookup[*hostStream](&l.table, h)
	if !ok {
		return nil, ErrBadHandle
	}
	err := s.failure()
	if err == nil {
		return nil, OK
	}
	_, raw := describe(err)
	return raw, OK
}

// StreamClose frees a stream. A command that still writes to it sees a closed pipe. Idempotent.
func (l *Library) StreamClose(h Handle) Code {
	if s, ok := lookup[*hostStream](&l.table, h); ok {
		s.bridge.closeStream(s)
	}
	return OK
}

// Shutdown cancels everything, closes the providers and waits for that, at most for timeout. Later calls are refused.
func (l *Library) Shutdown(timeout time.Duration) Code {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return OK
	}
	l.closed = true
	bridges := append([]*Bridge(nil), l.bridges...)
	l.mu.Unlock()
	for _, b := range bridges {
		b.close()
	}
	over := make(chan struct{})
	l.safeGo(func() {
		defer close(over)
		l.running.Wait()
		var closing sync.WaitGroup
		for _, v := range l.table.all(tagProvider) {
			closing.Add(1)
			l.safeGo(func() {
				defer closing.Done()
				_ = v.(core.Provider).Close(ctx) // the process is ending
			})
		}
		closing.Wait()
		_ = l.ledger.Close() // the process is ending
	})
	select {
	case <-over:
	case <-ctx.Done():
	}
	return OK
}

// stats is the JSON of Stats.
type stats struct {
	Bridges    int    `json:"bridges"`
	Operations int    `json:"operations"`
	Streams    int    `json:"streams"`
	Providers  int    `json:"providers"`
	Sandboxes  int    `json:"sandboxes"`
	Panics     int64  `json:"panics"`
	LastPanic  string `json:"last_panic"`
	Goroutines int    `json:"goroutines"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	Terminals  int    `json:"terminals"`
}

// Stats tells what is open, as JSON.
func (l *Library) Stats() []byte {
	s := stats{Panics: l.panics.Load(), Goroutines: runtime.NumGoroutine(), GOMAXPROCS: runtime.GOMAXPROCS(0)}
	s.Bridges, s.Streams, s.Providers, s.Sandboxes, s.Terminals = l.table.counts()
	for _, v := range l.table.all(tagBridge) {
		b := v.(*Bridge)
		b.mu.Lock()
		s.Operations += len(b.ops)
		b.mu.Unlock()
	}
	if p := l.lastPanic.Load(); p != nil {
		s.LastPanic = *p
	}
	raw, err := json.Marshal(s)
	if err != nil { // numbers and text
		return []byte("{}")
	}
	return raw
}

// errNoProvider is for an operation whose provider handle is no longer valid.
var errNoProvider = errors.New("the provider has been closed")
