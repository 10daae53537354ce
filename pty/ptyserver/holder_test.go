package ptyserver

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sh forks this machine's shell.
type sh struct{}

func (sh) Start(spec Spec, files [3]*os.File) (Process, error) {
	cmd := exec.Command("/bin/sh", "-c", spec.Command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = files[0], files[1], files[2]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: spec.Terminal}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &shell{cmd: cmd, done: make(chan struct{})}
	go func() { defer close(p.done); _ = cmd.Wait() }()
	return p, nil
}

type shell struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *shell) Done() <-chan struct{}     { return p.done }
func (p *shell) Code() int                 { return p.cmd.ProcessState.ExitCode() }
func (p *shell) Signal(sig syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, sig) }
func (p *shell) End()                      { p.Signal(syscall.SIGKILL); <-p.done }

const patience = 20 * time.Second

// quick are the server's times, in the same relations, for tests.
var quick = times{
	tick:     100 * time.Millisecond,
	ping:     500 * time.Millisecond,
	silence:  2 * time.Second,
	stall:    time.Second,
	farewell: 100 * time.Millisecond,
}

// place is a server whose connections have small buffers.
type place struct {
	t testing.TB
	s *Server
	l net.Listener
}

func newPlace(t testing.TB, times times) *place {
	p := &place{t: t, s: newServer(sh{}, NewBudget(8<<20), times)}
	var err error
	p.l, err = net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := p.l.Accept()
			if err != nil {
				return
			}
			_ = c.(*net.UnixConn).SetWriteBuffer(16 << 10)
			wg.Go(func() { p.s.ServeConn(c) })
		}
	})
	t.Cleanup(func() {
		_ = p.l.Close()
		p.s.Close()
		wg.Wait()
	})
	return p
}

// session starts a command without a terminal and attaches to it.
func (p *place) session(command string) (*session, *websocket.Conn) {
	p.t.Helper()
	one := newSession(p.s, newID(), Spec{Command: command}, 24, 80)
	require.True(p.t, p.s.add(one))
	conn := p.dial(one)
	_, msg, err := conn.ReadMessage()
	require.NoError(p.t, err)
	require.Contains(p.t, string(msg), "connected")
	return one, conn
}

func (p *place) dial(one *session) *websocket.Conn { return p.dialWith(one, "") }

func (p *place) dialWith(one *session, query string) *websocket.Conn {
	p.t.Helper()
	d := websocket.Dialer{NetDial: func(string, string) (net.Conn, error) {
		return net.Dial("unix", p.l.Addr().String())
	}}
	conn, _, err := d.Dial("ws://x/pty/"+one.id+"/ws?pty=0&takeover=1"+query, http.Header{})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// total is how much the process has printed.
func (p *place) total(one *session) int64 { return one.info().OutputOffset }

// settled waits until the process prints no more, and gives how much it has printed.
func (p *place) settled(one *session) int64 {
	p.t.Helper()
	last, same := int64(-1), 0
	require.Eventually(p.t, func() bool {
		now := p.total(one)
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
		return same == 15
	}, patience, 20*time.Millisecond)
	return last
}

const flood = "head -c 6000000 /dev/zero | tr '\\0' x"

func TestHolderThatTakesNothingIsDroppedInTime(t *testing.T) {
	p := newPlace(t, quick)
	one, conn := p.session(flood)
	begun := time.Now()
	select {
	case <-one.over:
	case <-time.After(patience):
		t.Fatal("a client that does not read blocks the process")
	}
	assert.GreaterOrEqual(t, time.Since(begun), quick.stall)
	assert.Equal(t, int64(6_000_000), p.total(one))
	assert.False(t, one.held())
	_ = conn.Close()
}

func TestHolderThatIsSlowIsNotDropped(t *testing.T) {
	p := newPlace(t, quick)
	one, conn := p.session("head -c 300000 /dev/zero | tr '\\0' x")
	total := 0
	for {
		kind, msg, err := conn.ReadMessage()
		require.NoError(t, err)
		if kind == websocket.BinaryMessage {
			require.Equal(t, byte(1), msg[0])
			total += len(msg) - 1
			time.Sleep(quick.stall / 8) // a message in an eighth of the time that would be its end
		}
		if strings.Contains(string(msg), `"exit"`) {
			break
		}
	}
	assert.Equal(t, 300_000, total)
	assert.Equal(t, int64(300_000), p.total(one))
}

func TestLostHolderHoldsTheProcessBackForAWhile(t *testing.T) {
	times := quick
	times.tick = 400 * time.Millisecond // the claim has to outlast the look, on a slow machine too
	p := newPlace(t, times)
	one, conn := p.session(flood)
	begun := time.Now()
	require.NoError(t, conn.NetConn().Close())
	stopped := p.settled(one)
	assert.Less(t, stopped, int64(2_000_000))
	<-one.over
	assert.Equal(t, int64(6_000_000), p.total(one))
	assert.GreaterOrEqual(t, time.Since(begun), claimTicks*times.tick)
}

func TestLostHolderKeepsItsClaimWhileTheSandboxStandsStill(t *testing.T) {
	p := newPlace(t, quick)
	p.s.Still(true)
	one, conn := p.session(flood)
	require.NoError(t, conn.NetConn().Close())
	stopped := p.settled(one)
	select {
	case <-one.over:
		t.Fatal("the process went on")
	case <-time.After(3 * claimTicks * quick.tick):
	}
	assert.Equal(t, stopped, p.total(one))
	p.s.Still(false)
	<-one.over
}

func TestHolderThatLeavesHoldsNothing(t *testing.T) {
	times := quick
	times.tick = time.Hour
	p := newPlace(t, times)
	one, conn := p.session("read x; " + flood)
	require.NoError(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00\n")))
	require.NoError(t, conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(1000, "")))
	select {
	case <-one.over:
	case <-time.After(patience):
		t.Fatal("the process waits for a client that has left")
	}
	_ = conn.Close()
}

func TestHolderThatComesBackEndsTheClaim(t *testing.T) {
	times := quick
	times.tick = time.Hour
	p := newPlace(t, times)
	one, conn := p.session(flood)
	require.NoError(t, conn.NetConn().Close())
	p.settled(one)
	conn = p.dial(one)
	total := 0
	for {
		kind, r, err := conn.NextReader()
		require.NoError(t, err)
		msg, err := io.ReadAll(r)
		require.NoError(t, err)
		if kind == websocket.TextMessage {
			if strings.Contains(string(msg), "exit") {
				break
			}
			continue
		}
		if msg[0] == 3 {
			total -= 8
		}
		total += len(msg) - 1
	}
	assert.Equal(t, 6_000_000, total, "all of it: the ring began at 0 when the claim held the process back")
}

func TestSilentHolderIsFoundDead(t *testing.T) {
	times := quick
	times.stall = patience
	p := newPlace(t, times)
	one, conn := p.session("read x")
	// Nobody reads, so nobody answers the pings.
	require.Eventually(t, func() bool { return !one.held() }, patience, 5*time.Millisecond)
	_ = conn.Close()
}

func TestHolderThatAnswersPingsIsAlive(t *testing.T) {
	p := newPlace(t, quick)
	one, conn := p.session("read x")
	go func() {
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
		}
	}()
	never := time.After(quick.silence + quick.ping)
	for alive := true; alive; {
		select {
		case <-never:
			alive = false
		case <-time.After(5 * time.Millisecond):
			require.True(t, one.held())
		}
	}
	_ = conn.Close()
}

func TestTakeoverOfAStalledHolderDoesNotWait(t *testing.T) {
	times := quick
	times.stall = patience
	p := newPlace(t, times)
	one, old := p.session(flood)
	p.settled(one)
	begun := time.Now()
	conn := p.dial(one)
	_, msg, err := conn.ReadMessage()
	require.NoError(t, err)
	assert.Equal(t, byte(3), msg[0])
	assert.Less(t, time.Since(begun), patience/2)
	_ = old.Close()
}

func TestSignalNeverReachesAProcessThatIsGone(t *testing.T) {
	p := newPlace(t, quick)
	one, conn := p.session("exit 3")
	<-one.over
	one.mu.Lock()
	h := one.holder
	one.mu.Unlock()
	if h != nil {
		one.signal(h, "SIGKILL")
	}
	_ = conn.Close()
	assert.Equal(t, 3, one.code)
}

func TestInputOfAnEvictedHolderIsRefused(t *testing.T) {
	p := newPlace(t, quick)
	file := filepath.Join(t.TempDir(), "in")
	one, old := p.session("cat > " + file)
	one.mu.Lock()
	h := one.holder
	one.mu.Unlock()
	conn := p.dial(one)
	_, _, err := conn.ReadMessage() // its greeting: now it is the holder
	require.NoError(t, err)
	assert.False(t, one.write(h, []byte("late")))
	require.NoError(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00mine\n")))
	require.Eventually(t, func() bool { got, _ := os.ReadFile(file); return string(got) == "mine\n" }, patience, 5*time.Millisecond)
	_ = old.Close()
}

// A client that takes everything but tells nothing: all it was sent may still get lost.
func TestHolderThatAcknowledgesNothingIsDroppedInTime(t *testing.T) {
	p := newPlace(t, quick)
	one, old := p.session("read x; " + flood)
	conn := p.dialWith(one, "&flow=1")
	_ = old.Close()
	_, msg, err := conn.ReadMessage()
	require.NoError(t, err)
	require.Contains(t, string(msg), `"flow":true`)
	require.NoError(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00\n")))
	got := 0
	for {
		kind, msg, err := conn.ReadMessage()
		if err != nil {
			break
		}
		if kind == websocket.BinaryMessage {
			got += len(msg) - 1
		}
	}
	assert.LessOrEqual(t, got, 1<<20)
	assert.Greater(t, got, 900_000)
	<-one.over
	assert.Equal(t, int64(6_000_000), p.total(one))
}

func TestHolderIsToldWhatWasTaken(t *testing.T) {
	p := newPlace(t, quick)
	one, old := p.session("cat")
	conn := p.dialWith(one, "&flow=1")
	_ = old.Close()
	_, _, err := conn.ReadMessage()
	require.NoError(t, err)
	require.NoError(t, conn.WriteMessage(websocket.BinaryMessage, []byte("\x00hello\n")))
	var said []string
	for len(said) < 2 {
		_, msg, err := conn.ReadMessage()
		require.NoError(t, err)
		said = append(said, string(msg))
	}
	assert.ElementsMatch(t, []string{"{\"type\":\"taken\",\"offset\":6}\n", "\x01hello\n"}, said)
	// Whoever comes next hears it with the greeting.
	next := p.dialWith(one, "&flow=1&since=6")
	_, msg, err := next.ReadMessage()
	require.NoError(t, err)
	assert.Contains(t, string(msg), `"flow":true,"accepted":6,"taken":6}`)
}
