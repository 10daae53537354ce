package dispatch

import (
	"encoding/binary"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait of these tests; nothing of them takes nearly as long.
const patience = 20 * time.Second

// host drives one bridge as a program on the other side of the border would: by its descriptor and Drain alone.
type host struct {
	t       *testing.T
	lib     *Library
	b       *Bridge
	handle  Handle
	next    uint64
	done    map[uint64][]event
	streams map[uint64]map[uint32]Handle // by operation and descriptor
	edges   map[Handle]int
	logs    []string
	cap     int
}

func newLibrary(t *testing.T, more ...func(*core.Registry)) *Library {
	t.Helper()
	r := core.NewRegistry()
	r.Register("mem", mem.NewFactory())
	for _, add := range more {
		add(r)
	}
	l := New(r)
	l.testHooks = true
	t.Cleanup(func() { require.Equal(t, OK, l.Shutdown(patience)) })
	return l
}

func newHost(t *testing.T, l *Library) *host {
	t.Helper()
	h, code := l.NewBridge()
	require.Equal(t, OK, code)
	b, code := l.Bridge(h)
	require.Equal(t, OK, code)
	return &host{
		t: t, lib: l, b: b, handle: h, cap: MaxEvent, done: map[uint64][]event{}, streams: map[uint64]map[uint32]Handle{},
		edges: map[Handle]int{},
	}
}

func (h *host) submit(op uint32, req any) uint64 {
	h.t.Helper()
	h.next++
	raw, err := json.Marshal(req)
	require.NoError(h.t, err)
	require.Equal(h.t, OK, h.b.Submit(h.next, op, raw))
	return h.next
}

// readable tells whether the descriptor is, waiting at most d.
func (h *host) readable(d time.Duration) bool {
	h.t.Helper()
	fds := []unix.PollFd{{Fd: int32(h.b.Descriptor()), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(d.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		require.NoError(h.t, err)
		return n == 1
	}
}

// turn waits for events and takes one batch.
func (h *host) turn() {
	h.t.Helper()
	require.True(h.t, h.readable(patience), "no event came")
	buf := make([]byte, h.cap)
	n, code := h.b.Drain(buf)
	require.Equal(h.t, OK, code)
	for _, e := range decodeEvents(h.t, buf[:n]) {
		switch e.kind {
		case EventDone:
			h.done[e.id] = append(h.done[e.id], e)
		case EventStreamOpen:
			if h.streams[e.id] == nil {
				h.streams[e.id] = map[uint32]Handle{}
			}
			h.streams[e.id][e.aux] = Handle(binary.LittleEndian.Uint64(e.payload))
		case EventReadable, EventWritable:
			h.edges[Handle(e.id)]++
		case EventLog:
			h.logs = append(h.logs, string(e.payload))
		default:
			h.t.Fatalf("unknown event %+v", e)
		}
	}
}

func decodeEvents(t *testing.T, p []byte) []event {
	t.Helper()
	var all []event
	for len(p) > 0 {
		require.GreaterOrEqual(t, len(p), HeaderSize)
		n := int(binary.LittleEndian.Uint32(p[8:]))
		e := event{
			id: binary.LittleEndian.Uint64(p), kind: binary.LittleEndian.Uint16(p[12:]), flags: binary.LittleEndian.Uint16(p[14:]),
			status: Code(binary.LittleEndian.Uint32(p[16:])), aux: binary.LittleEndian.Uint32(p[20:]),
		}
		require.LessOrEqual(t, HeaderSize+padded(n), len(p), "an event was cut")
		e.payload = append([]byte(nil), p[HeaderSize:HeaderSize+n]...)
		all = append(all, e)
		p = p[HeaderSize+padded(n):]
	}
	return all
}

// wait gives the one DONE of an operation.
func (h *host) wait(id uint64) event {
	h.t.Helper()
	for len(h.done[id]) == 0 {
		h.turn()
	}
	require.Len(h.t, h.done[id], 1, "an operation has exactly one DONE")
	return h.done[id][0]
}

// run submits an operation that must succeed and decodes its JSON.
func (h *host) run(op uint32, req, into any) {
	h.t.Helper()
	e := h.wait(h.submit(op, req))
	require.Equal(h.t, OK, e.status, "%s", e.payload)
	if into != nil {
		require.NoError(h.t, json.Unmarshal(e.payload, into))
	}
}

// fail submits an operation that must fail.
func (h *host) fail(op uint32, req any) errorPayload {
	h.t.Helper()
	return h.failed(h.submit(op, req))
}

func (h *host) failed(id uint64) errorPayload {
	h.t.Helper()
	e := h.wait(id)
	var p errorPayload
	require.NoError(h.t, json.Unmarshal(e.payload, &p))
	require.NotEqual(h.t, OK, e.status)
	require.Equal(h.t, e.status, p.Code)
	return p
}

type object map[string]any

// sandbox makes a provider and a sandbox.
func (h *host) sandbox(config string) (provider, sandbox Handle) {
	h.t.Helper()
	p, err := h.lib.NewProvider("mem", []byte(config))
	require.NoError(h.t, err)
	var made sandboxReply
	h.run(opCreate, object{"provider": p, "spec": object{}}, &made)
	return p, made.Sandbox
}

type result struct {
	execReply
	out, err []byte
}

func (h *host) result(id uint64) result {
	h.t.Helper()
	e := h.wait(id)
	require.Equal(h.t, OK, e.status, "%s", e.payload)
	require.Equal(h.t, FlagFramed, e.flags)
	var r result
	n := binary.LittleEndian.Uint32(e.payload)
	require.NoError(h.t, json.Unmarshal(e.payload[4:4+n], &r.execReply))
	rest := e.payload[4+n:]
	for _, o := range []struct {
		about *outputReply
		into  *[]byte
	}{{r.Stdout, &r.out}, {r.Stderr, &r.err}} {
		switch {
		case o.about == nil:
		case o.about.Stream != 0:
			*o.into = h.readAll(o.about.Stream)
			require.Len(h.t, *o.into, int(o.about.Len))
		default:
			*o.into, rest = rest[:o.about.Len], rest[o.about.Len:]
		}
	}
	require.Empty(h.t, rest)
	return r
}

// readAll reads a stream to its end, waiting for edges, and closes it.
func (h *host) readAll(s Handle) []byte {
	h.t.Helper()
	var all []byte
	buf := make([]byte, 64<<10)
	for {
		n, code := h.lib.StreamRead(s, buf)
		if code == EOF {
			require.Equal(h.t, OK, h.lib.StreamClose(s))
			return all
		}
		require.Equal(h.t, OK, code)
		all = append(all, buf[:n]...)
		if n == 0 {
			h.edge(s)
		}
	}
}

// edge waits for an edge of a stream and takes it.
func (h *host) edge(s Handle) {
	h.t.Helper()
	for h.edges[s] == 0 {
		h.turn()
	}
	h.edges[s]--
}

// stream waits for an operation's stream.
func (h *host) stream(id uint64, fd uint32) Handle {
	h.t.Helper()
	for h.streams[id][fd] == 0 {
		h.turn()
	}
	return h.streams[id][fd]
}

func (h *host) stats() stats {
	h.t.Helper()
	var s stats
	require.NoError(h.t, json.Unmarshal(h.lib.Stats(), &s))
	return s
}

// eventually waits for a state that has no event.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, time.Millisecond, what)
}
