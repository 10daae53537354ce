package pty

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// foreign is a server of somebody else: it says what a test lets it say.
type foreign struct {
	*Client
	t testing.TB

	mu       sync.Mutex
	requests []string
	parents  []string // the span of each request
	create   func(w http.ResponseWriter)
	info     func(w http.ResponseWriter)
	// attach plays one connection after the other; the last one again and again.
	attach []func(c *websocket.Conn)
	seen   int
}

const foreignID = "00000000-0000-4000-8000-000000000001"

func newForeign(t testing.TB, attach ...func(c *websocket.Conn)) *foreign {
	f := &foreign{t: t, attach: attach}
	var serving sync.WaitGroup
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serving.Add(1)
		defer serving.Done()
		f.mu.Lock()
		f.requests = append(f.requests, r.Method+" "+r.URL.RequestURI())
		f.parents = append(f.parents, r.Header.Get("traceparent"))
		create, info := f.create, f.info
		f.mu.Unlock()
		switch {
		case r.Method == http.MethodPost:
			if create != nil {
				create(w)
				return
			}
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"session_id":%q}`, foreignID)
		case strings.HasSuffix(r.URL.Path, "/ws"):
			f.mu.Lock()
			play := f.attach[min(f.seen, len(f.attach)-1)]
			f.seen++
			f.mu.Unlock()
			if play == nil {
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, `{"code":"ALREADY_CONNECTED","message":"another client is already connected"}`)
				return
			}
			u := websocket.Upgrader{}
			c, err := u.Upgrade(w, r, nil)
			if err == nil {
				play(c)
				_ = c.Close()
			}
		case r.Method == http.MethodGet && info != nil:
			info(w)
		}
	}))
	f.Client = &Client{URL: h.URL, Provider: "test", SandboxID: "box", times: standard}
	f.times.retry = []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond}
	f.times.refused = []time.Duration{time.Millisecond, 2 * time.Millisecond}
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
		serving.Wait()
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return f
}

func (f *foreign) asked() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.requests...)
}

func (f *foreign) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	f.t.Cleanup(cancel)
	return ctx
}

func text(c *websocket.Conn, p string) { _ = c.WriteMessage(websocket.TextMessage, []byte(p)) }
func bin(c *websocket.Conn, p string)  { _ = c.WriteMessage(websocket.BinaryMessage, []byte(p)) }
func bye(c *websocket.Conn, code int) {
	_ = c.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""))
	wait(c)
}

// wait reads until the client leaves.
func wait(c *websocket.Conn) {
	for {
		if _, _, err := c.ReadMessage(); err != nil {
			return
		}
	}
}

const (
	hello = `{"type":"connected","session_id":"` + foreignID + `","mode":"pty"}` + "\n"
	exit7 = `{"type":"exit","exit_code":7}` + "\n"
)

func replayAt(offset int64, p string) string {
	var b strings.Builder
	b.WriteByte(3)
	for shift := 56; shift >= 0; shift -= 8 {
		b.WriteByte(byte(offset >> shift))
	}
	return b.String() + p
}

// all reads everything and gives it with the error that ends it.
func (f *foreign) all(s *Session) (string, error) {
	var got []byte
	for {
		p, err := s.Read(f.ctx())
		if err != nil {
			return string(got), err
		}
		got = append(got, p...)
	}
}

func TestForeignFramesAreUnderstood(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) {
		bin(c, replayAt(5, "old"))
		text(c, hello)
		bin(c, "")
		bin(c, "\x01")
		bin(c, "\x01live")
		bin(c, "\x02err")
		bin(c, replayAt(5, ""))
		bin(c, "\x09unknown channel")
		text(c, `{"type":"pong"}`)
		text(c, `{"type":"something new"}`)
		bin(c, "\x01END")
		text(c, exit7)
		bye(c, 1000)
	})
	s, err := f.Open(f.ctx(), core.PTYSpec{Command: "x"})
	require.NoError(t, err)
	assert.Equal(t, "pty", s.Mode())
	got, err := f.all(s)
	assert.ErrorIs(t, err, io.EOF)
	assert.Equal(t, "oldliveEND", got)
	p, err := s.ReadStderr(f.ctx())
	require.NoError(t, err)
	assert.Equal(t, "err", string(p))
	code, err := s.WaitExit(f.ctx())
	require.NoError(t, err)
	assert.Equal(t, 7, code)
	require.NoError(t, s.Close(f.ctx()))
	require.NoError(t, s.Close(f.ctx()))
	code, err = s.WaitExit(f.ctx())
	require.NoError(t, err)
	assert.Equal(t, 7, code)
	assert.Equal(t, []string{"POST /pty", "GET /pty/" + foreignID + "/ws", "DELETE /pty/" + foreignID}, f.asked())
}

func TestForeignServerIsToldTheSizeAfterwards(t *testing.T) {
	got := make(chan string, 1)
	f := newForeign(t, func(c *websocket.Conn) {
		text(c, hello)
		_, p, _ := c.ReadMessage()
		got <- string(p)
		wait(c)
	})
	s, err := f.Open(f.ctx(), core.PTYSpec{Rows: 30, Cols: 100})
	require.NoError(t, err)
	assert.Equal(t, `{"type":"resize","cols":100,"rows":30}`, <-got)
	require.NoError(t, s.Close(f.ctx()))
}

func TestForeignQueries(t *testing.T) {
	attached := func(c *websocket.Conn) { text(c, hello); wait(c) }
	for query, open := range map[string]func(*foreign) (*Session, error){
		"?pty=0":      func(f *foreign) (*Session, error) { return f.Open(f.ctx(), core.PTYSpec{NoTerminal: true}) },
		"":            func(f *foreign) (*Session, error) { return f.Attach(f.ctx(), foreignID, false, 0) },
		"?takeover=1": func(f *foreign) (*Session, error) { return f.Attach(f.ctx(), foreignID, true, 0) },
		"?pty=0&takeover=1": func(f *foreign) (*Session, error) {
			f.Pipes = true
			return f.Attach(f.ctx(), foreignID, true, 0)
		},
		"?takeover=1&since=17": func(f *foreign) (*Session, error) { return f.Attach(f.ctx(), foreignID, true, 17) },
	} {
		f := newForeign(t, attached)
		s, err := open(f)
		require.NoError(t, err)
		asked := f.asked()
		assert.Equal(t, "GET /pty/"+foreignID+"/ws"+query, asked[len(asked)-1])
		require.NoError(t, s.Close(f.ctx()))
	}
}

func TestForeignRequestsNameTheSpanTheyAreMadeFor(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { text(c, hello); wait(c) })
	const span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	s, err := f.Open(core.WithTraceparent(f.ctx(), span), core.PTYSpec{})
	require.NoError(t, err)
	assert.Equal(t, []string{span, span}, f.parents, "the session's creation and its connection")
	require.NoError(t, s.Close(f.ctx()))
	assert.Equal(t, []string{span, span, ""}, f.parents)
}

func TestForeignFailuresToOpenDeleteWhatWasMade(t *testing.T) {
	for want, play := range map[string]func(*websocket.Conn){
		"exited before":                func(c *websocket.Conn) { text(c, exit7); wait(c) },
		"close code 1006":              func(*websocket.Conn) {},
		"close code 1011":              func(c *websocket.Conn) { bye(c, 1011) },
		"START_FAILED: no bash":        func(c *websocket.Conn) { text(c, `{"type":"error","error":"no bash","code":"START_FAILED"}`) },
		"malformed frame":              func(c *websocket.Conn) { text(c, "{nope"); wait(c) },
		"already has an attached":      func(c *websocket.Conn) { bye(c, 1008) },
		"taken over":                   func(c *websocket.Conn) { bye(c, 4001) },
		"more is replayed than":        func(c *websocket.Conn) { bin(c, replayAt(0, strings.Repeat("x", 2<<20))); wait(c) },
		"a replay without its offset":  func(c *websocket.Conn) { bin(c, "\x03abc"); wait(c) },
		"a replay at offset 184467440": func(c *websocket.Conn) { bin(c, replayAt(-1, "x")); wait(c) },
	} {
		f := newForeign(t, play)
		_, err := f.Open(f.ctx(), core.PTYSpec{})
		assert.Equal(t, core.KindPTY, core.KindOf(err), want)
		assert.ErrorContains(t, err, want)
		asked := f.asked()
		assert.Equal(t, "DELETE /pty/"+foreignID, asked[len(asked)-1], want)
		assert.Len(t, asked, 3, want)
	}
}

func TestForeignSilenceBeforeTheGreetingEndsWithTheContext(t *testing.T) {
	f := newForeign(t, wait)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := f.Open(ctx, core.PTYSpec{})
	assert.Equal(t, core.KindTimeout, core.KindOf(err))
	assert.Contains(t, f.asked(), "DELETE /pty/"+foreignID)
}

func TestForeignSilenceBeforeTheGreetingEndsWithTheTimeout(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { wait(c) })
	f.Timeout = 50 * time.Millisecond
	_, err := f.Open(f.ctx(), core.PTYSpec{})
	assert.Equal(t, core.KindTimeout, core.KindOf(err), "%v", err)
	assert.Equal(t, "DELETE /pty/"+foreignID, f.asked()[len(f.asked())-1])
}

// A session's death must not look like the end of the reader's own time.
func TestForeignSilenceAfterALossEndsTheSession(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { text(c, hello) }, wait)
	f.Timeout = 200 * time.Millisecond
	s, err := f.Open(f.ctx(), core.PTYSpec{Rows: 24, Cols: 80})
	require.NoError(t, err)
	_, err = s.Read(f.ctx())
	assert.Equal(t, core.KindPTY, core.KindOf(err), "%v", err)
	assert.ErrorContains(t, err, "did not say that the session is attached")
	_, err = s.WaitExit(f.ctx())
	assert.Equal(t, core.KindPTY, core.KindOf(err), "%v", err)
	require.NoError(t, s.Close(f.ctx()))
}

func TestForeignCreateIsTriedAgainWhereThatHelps(t *testing.T) {
	attached := func(c *websocket.Conn) { text(c, hello); wait(c) }
	for status, tries := range map[int]int{502: 2, 503: 2, 404: 2, 400: 1, 500: 1} {
		f := newForeign(t, attached)
		n := 0
		f.create = func(w http.ResponseWriter) {
			if n++; n == 1 {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "said the server")
				return
			}
			w.WriteHeader(201)
			_, _ = fmt.Fprintf(w, `{"session_id":%q}`, foreignID)
		}
		s, err := f.Open(f.ctx(), core.PTYSpec{})
		assert.Equal(t, tries, n, status)
		if tries == 1 {
			assert.ErrorContains(t, err, fmt.Sprintf("PTY create failed with HTTP %d: said the server", status))
		} else {
			require.NoError(t, err)
			require.NoError(t, s.Close(f.ctx()))
		}
	}
	// An error, then a dead id: the status counts.
	f := newForeign(t, attached)
	f.create = func(w http.ResponseWriter) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, `{"code":"RUNTIME_ERROR","message":"mkdir failed"}{"session_id":"dead"}`)
	}
	_, err := f.Open(f.ctx(), core.PTYSpec{})
	assert.ErrorContains(t, err, "RUNTIME_ERROR: mkdir failed")
}

func TestForeignLossIsHealedFromTheLastByte(t *testing.T) {
	f := newForeign(t,
		func(c *websocket.Conn) { text(c, hello); bin(c, "\x01abc") },
		func(c *websocket.Conn) { bye(c, 1011) },
		func(c *websocket.Conn) {
			bin(c, replayAt(1, "bcdef")) // from before what was asked for
			text(c, hello)
			bin(c, "\x01ghi")
		},
		func(c *websocket.Conn) {
			bin(c, replayAt(20, "later"))
			text(c, hello)
			text(c, `{"type":"exit"}`)
			bye(c, 1000)
		})
	s, err := f.Open(f.ctx(), core.PTYSpec{})
	require.NoError(t, err)
	defer s.Close(f.ctx())
	got, err := f.all(s)
	assert.Equal(t, "abcdefghi", got)
	var gap *core.PTYGap
	require.True(t, errors.As(err, &gap), "%v", err)
	assert.Equal(t, core.PTYGap{Bytes: 11, At: 9}, *gap)
	got, err = f.all(s)
	assert.Equal(t, "later", got)
	assert.ErrorIs(t, err, io.EOF)
	code, err := s.WaitExit(f.ctx())
	require.NoError(t, err)
	assert.Equal(t, -1, code)
	offset, _ := s.ReplayOffset()
	assert.Equal(t, int64(20), offset)
	asked := f.asked()
	assert.Equal(t, []string{
		"GET /pty/" + foreignID + "/ws", "GET /pty/" + foreignID + "/ws?takeover=1&since=3",
		"GET /pty/" + foreignID + "/ws?takeover=1&since=3", "GET /pty/" + foreignID + "/ws?takeover=1&since=9",
	}, asked[1:])
}

func TestForeignRefusalsAreTold(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ws") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "said the server")
		}
	}))
	f := newForeign(t, nil)
	f.URL = h.URL
	_, err := f.Attach(f.ctx(), foreignID, true, 0)
	assert.ErrorContains(t, err, "Failed to attach to PTY session "+foreignID+" with HTTP 403: said the server")
	h.Close()
	_, err = f.Open(f.ctx(), core.PTYSpec{})
	assert.ErrorContains(t, err, "PTY create failed: ")
}

func TestForeignConnectionsWithoutAByteEndTheSession(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { text(c, hello) })
	s, err := f.Open(f.ctx(), core.PTYSpec{})
	require.NoError(t, err)
	defer s.Close(f.ctx())
	_, err = f.all(s)
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.ErrorContains(t, err, "close code 1006")
	assert.Len(t, f.asked(), 1+1+maxFruitless)
}

func TestForeignEndsThatAreFinal(t *testing.T) {
	for want, play := range map[string]func(*websocket.Conn){
		"taken over": func(c *websocket.Conn) { text(c, hello); bye(c, 4001) },
		"STDIN_WRITE_FAILED: pipe": func(c *websocket.Conn) {
			text(c, hello)
			text(c, `{"type":"error","error":"pipe","code":"STDIN_WRITE_FAILED"}`)
		},
		"malformed frame": func(c *websocket.Conn) { text(c, hello); text(c, "[1"); wait(c) },
	} {
		f := newForeign(t, play)
		s, err := f.Open(f.ctx(), core.PTYSpec{})
		require.NoError(t, err)
		_, err = f.all(s)
		assert.Equal(t, core.KindPTY, core.KindOf(err))
		assert.ErrorContains(t, err, want)
		assert.Len(t, f.asked(), 2, "nobody comes back")
		assert.True(t, s.Closed())
		require.NoError(t, s.Close(f.ctx()))
	}
}

func TestForeignRefusals(t *testing.T) {
	attached := func(c *websocket.Conn) { text(c, hello); wait(c) }
	refused := func(c *websocket.Conn) { bye(c, 1008) }
	// Without takeover a refusal is final, in either form.
	for _, play := range []func(*websocket.Conn){nil, refused} {
		f := newForeign(t, play, attached)
		_, err := f.Attach(f.ctx(), foreignID, false, 0)
		assert.ErrorContains(t, err, "already has an attached client")
		for _, asked := range f.asked() {
			assert.NotContains(t, asked, "DELETE")
		}
		// With it, the server may need a moment.
		f = newForeign(t, play, play, attached)
		s, err := f.Attach(f.ctx(), foreignID, true, 0)
		require.NoError(t, err)
		require.NoError(t, s.Close(f.ctx()))
		f = newForeign(t, play)
		_, err = f.Attach(f.ctx(), foreignID, true, 0)
		assert.ErrorContains(t, err, "already has an attached client")
	}
}

func TestForeignRefusalOfATakeoverTellsThatTheSandboxIsDead(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { bye(c, 1008) })
	asked := 0
	f.Diagnose = func(context.Context) error { asked++; return errors.New("Sandbox is dead: state Failed") }
	_, err := f.Attach(f.ctx(), foreignID, true, 0)
	assert.ErrorContains(t, err, "takeover kept being refused: Sandbox is dead: state Failed")
	assert.ErrorContains(t, err, "already has an attached client")
	assert.Equal(t, core.KindPTY, core.KindOf(err))
	assert.Equal(t, 1, asked)
	// A refusal without takeover says what it means.
	_, err = f.Attach(f.ctx(), foreignID, false, 0)
	assert.ErrorContains(t, err, "already has an attached client")
	assert.NotContains(t, err.Error(), "dead")
	assert.Equal(t, 1, asked)
}

func TestForeignHolderOfThisProcessYieldsBeforeTheTakeover(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { text(c, hello); wait(c) })
	old, err := f.Attach(f.ctx(), foreignID, false, 0)
	require.NoError(t, err)
	defer old.Close(f.ctx())
	var before int
	f.Yield = func(ctx context.Context, id string) error {
		assert.Equal(t, foreignID, id)
		before = len(f.asked())
		return old.Yield(ctx)
	}
	s, err := f.Attach(f.ctx(), foreignID, true, 0)
	require.NoError(t, err)
	defer s.Close(f.ctx())
	assert.Equal(t, "GET /pty/"+foreignID+"/ws?takeover=1", f.asked()[before], "it is asked after the session was found, and before it is dialed")
	_, err = old.Read(f.ctx())
	assert.ErrorContains(t, err, "detached")
	assert.False(t, old.Closed())
	// Whoever does not take over evicts nobody, and a holder that can't be asked stops the takeover.
	before = 0
	other, err := f.Attach(f.ctx(), foreignID, false, 0)
	require.NoError(t, err)
	defer other.Close(f.ctx())
	assert.Zero(t, before)
	dialed := len(f.asked())
	old.moving <- struct{}{}
	ctx, cancel := context.WithCancel(f.ctx())
	cancel()
	assert.Equal(t, core.KindCanceled, core.KindOf(old.Yield(ctx)))
	<-old.moving
	f.Yield = func(context.Context, string) error { return core.Errorf(core.KindCanceled, "", "gave up") }
	_, err = f.Attach(f.ctx(), foreignID, true, 0)
	assert.Equal(t, core.KindCanceled, core.KindOf(err))
	assert.Equal(t, dialed+1, len(f.asked()), "only the question whether it is there")
	// One that has ended has nothing to yield.
	old.Abandon(errors.New("over"))
	assert.NoError(t, old.Yield(f.ctx()))
}

func TestForeignSessionThatIsUnknown(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { text(c, hello); wait(c) })
	f.info = func(w http.ResponseWriter) {
		w.WriteHeader(404)
		_, _ = io.WriteString(w, `{"code":"CONTEXT_NOT_FOUND","message":"no"}`)
	}
	_, err := f.Attach(f.ctx(), foreignID, true, 0)
	assert.ErrorContains(t, err, "PTY session "+foreignID+" not found")
	assert.Len(t, f.asked(), 1)
	// A proxy's 404 says nothing of the session.
	f.info = func(w http.ResponseWriter) { w.WriteHeader(404) }
	s, err := f.Attach(f.ctx(), foreignID, true, 0)
	require.NoError(t, err)
	require.NoError(t, s.Close(f.ctx()))
}

// Some servers start the command again when somebody attaches after its end.
func TestForeignProcessIsNeverStartedTwice(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) { text(c, hello); bin(c, "\x01abc") })
	f.RestartsEnded = true
	f.info = func(w http.ResponseWriter) {
		_ = json.NewEncoder(w).Encode(map[string]any{"session_id": foreignID, "running": false, "output_offset": 10})
	}
	s, err := f.Open(f.ctx(), core.PTYSpec{})
	require.NoError(t, err)
	got, err := f.all(s)
	assert.Equal(t, "abc", got)
	assert.ErrorContains(t, err, "exit code is unknown")
	assert.ErrorContains(t, err, "the last 7 bytes")
	dials := 0
	for _, asked := range f.asked() {
		if strings.Contains(asked, "/ws") {
			dials++
		}
	}
	assert.Equal(t, 1, dials)
	require.NoError(t, s.Close(f.ctx()))
}

func TestForeignServerThatFallsSilentIsLeft(t *testing.T) {
	f := newForeign(t, func(c *websocket.Conn) {
		c.SetPingHandler(func(string) error { return nil }) // hears and says nothing
		text(c, hello)
		bin(c, "\x01abc")
		wait(c)
	}, func(c *websocket.Conn) {
		text(c, hello)
		bin(c, "\x01def")
		text(c, exit7)
		bye(c, 1000)
	})
	f.times.ping, f.times.silence = 50*time.Millisecond, 300*time.Millisecond
	s, err := f.Open(f.ctx(), core.PTYSpec{})
	require.NoError(t, err)
	defer s.Close(f.ctx())
	got, err := f.all(s)
	assert.ErrorIs(t, err, io.EOF)
	assert.Equal(t, "abcdef", got)
}

func TestForeignServerThatAnswersPingsIsKept(t *testing.T) {
	pings := make(chan struct{}, 100)
	f := newForeign(t, func(c *websocket.Conn) {
		handler := c.PingHandler()
		c.SetPingHandler(func(data string) error {
			select {
			case pings <- struct{}{}:
			default:
			}
			return handler(data)
		})
		text(c, hello)
		wait(c)
	})
	f.times.ping, f.times.silence = 20*time.Millisecond, 500*time.Millisecond
	s, err := f.Open(f.ctx(), core.PTYSpec{})
	require.NoError(t, err)
	for range 40 { // more than the silence is long
		<-pings
	}
	assert.Len(t, f.asked(), 2)
	require.NoError(t, s.Close(f.ctx()))
}

func TestForeignWriteIsSentAsItIs(t *testing.T) {
	got := make(chan []byte, 10)
	f := newForeign(t, func(c *websocket.Conn) {
		text(c, hello)
		for {
			_, p, err := c.ReadMessage()
			if err != nil {
				return
			}
			got <- p
		}
	})
	s, err := f.Open(f.ctx(), core.PTYSpec{})
	require.NoError(t, err)
	require.NoError(t, s.Write(f.ctx(), []byte("a\x00\xff\n")))
	assert.Equal(t, "\x00a\x00\xff\n", string(<-got))
	require.NoError(t, s.Signal(f.ctx(), "SIGINT"))
	assert.Equal(t, `{"type":"signal","signal":"SIGINT"}`, string(<-got))
	require.NoError(t, s.Close(f.ctx()))
}
