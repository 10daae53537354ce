package pty

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// silentLink is a link to a server that says nothing: messages are given to its session directly.
func silentLink(f *testing.F) *link {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := websocket.Upgrader{}
		if c, err := u.Upgrade(w, r, nil); err == nil {
			wait(c)
			_ = c.Close()
		}
	}))
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(h.URL, "http"), nil)
	if err != nil {
		f.Fatal(err)
	}
	l := newLink(conn, &standard)
	f.Cleanup(func() {
		l.drop()
		l.beating.Wait()
		h.Close()
	})
	return l
}

// FuzzMessages gives a session whatever a server could send: first a byte that
// tells text from binary and the length's upper half, then the lower half, then the message.
// The sandbox on the other side is not trusted.
func FuzzMessages(f *testing.F) {
	message := func(kind byte, p string) []byte {
		return append([]byte{kind<<7 | byte(len(p)>>8), byte(len(p))}, p...)
	}
	for _, p := range []string{hello, exit7, `{"type":"error","error":"x","code":"START_FAILED"}`, `{"type":"taken","offset":5}`, `{"type":"connected","flow":true,"accepted":9,"taken":3}`, "{", ""} {
		f.Add(message(0, p))
	}
	for _, p := range []string{"", "\x01", "\x01abc", "\x02err", replayAt(0, ""), replayAt(3, "abc"), replayAt(1<<40, "x"), replayAt(-1, "x"), "\x03abc", "\x07"} {
		f.Add(message(1, p))
		f.Add(append(message(0, hello), message(1, p)...))
	}
	l := silentLink(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > maxBuffered {
			return
		}
		s := newSession(&Client{}, "id", false)
		l.flow, l.told, l.deaf = false, 0, false
		room := int64(len(data)) / 2
		arrived, read := int64(0), int64(0)
		for len(data) >= 2 {
			kind, n := data[0]>>7, min(int(data[0]&0x7f)<<8|int(data[1]), len(data)-2)
			p := data[2 : 2+n]
			data = data[2+n:]
			var err error
			if kind == 0 {
				_, err = s.control(l, bytes.NewReader(p))
			} else {
				err = s.binary(l, bytes.NewReader(p), make([]byte, 7), &room)
			}
			if s.received < arrived {
				t.Fatalf("the offset went back from %d to %d", arrived, s.received)
			}
			arrived = s.received
			if err != nil {
				break
			}
		}
		// What can be read, and what is said to be missing, is what has arrived.
		var last *core.PTYGap
		for _, from := range []core.Stream{core.Stdout, core.Stderr} {
			for p, ok := s.out[from].take(); ok; p, ok = s.out[from].take() {
				if p.gap != nil {
					if p.gap.Bytes <= 0 || last != nil && p.gap.At < last.At+last.Bytes {
						t.Fatalf("gap %+v after %+v", p.gap, last)
					}
					last = p.gap
				}
				read += int64(len(p.data))
			}
			if s.out[from].size != 0 {
				t.Fatalf("%d bytes are counted that nobody can read", s.out[from].size)
			}
		}
		if s.mode == "" && read > arrived {
			t.Fatalf("%d bytes to read of %d", read, arrived)
		}
	})
}

// FuzzMarked gives whatever a shell could print while a command runs in it.
func FuzzMarked(f *testing.F) {
	m := markers{"NGS0123456789ab", "cdef01234567"}
	for _, p := range []string{"", string(m.start()) + "\nout\n" + string(m.end()) + "7\r\n$ ", string(m.end()) + "7\n", string(m.start()) + "\n" + string(m.end()) + "99999999999999999999\n", string(m.start()) + "\n" + string(m.end()) + "-1\n"} {
		f.Add([]byte(p), 3)
	}
	f.Fuzz(func(t *testing.T, p []byte, n int) {
		whole, cut := newMarked(m), newMarked(m)
		whole.feed(p)
		if n < 1 || n > len(p) {
			n = 1
		}
		for rest := p; len(rest) > 0; rest = rest[min(n, len(rest)):] {
			cut.feed(rest[:min(n, len(rest))])
		}
		code, known := whole.status()
		if c, k := cut.status(); c != code || k != known || !bytes.Equal(whole.output(), cut.output()) || whole.complete() != cut.complete() {
			t.Fatalf("in pieces of %d: %q, %d %v; at once: %q, %d %v", n, cut.output(), c, k, whole.output(), code, known)
		}
	})
}

// FuzzTyped: whatever is typed survives a terminal: lines of printable characters, none too long.
func FuzzTyped(f *testing.F) {
	for _, p := range []string{"", "echo hi", "x\x00", "a\\", "!!", strings.Repeat("y", 5000), "☕\xff\x03\n\n", "'\\''"} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, command string) {
		m := newMarkers()
		p, err := typed(command, m)
		if err != nil {
			if !strings.Contains(command, "\x00") {
				t.Fatal(err)
			}
			return
		}
		for line := range bytes.SplitSeq(p, []byte("\n")) {
			if len(line) > 1023 || bytes.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Fatalf("a terminal would not take %q", line)
			}
		}
		if bytes.Contains(p, m.start()) || bytes.Contains(p, m.end()) {
			t.Fatal("the echo would contain a marker")
		}
	})
}

// FuzzControl: text messages of either side.
func FuzzControl(f *testing.F) {
	for _, p := range []string{hello, `{"type":"resize","cols":120,"rows":40}`, `{"type":"stdin","data":"x"}`, `{"exit_code":null}`, "[]", "null"} {
		f.Add([]byte(p))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		c, err := proto.DecodeControl(p)
		if err != nil {
			return
		}
		again, err := proto.DecodeControl(c.Line())
		if err != nil || again.Type != c.Type || again.Data != c.Data || again.Offset != c.Offset {
			t.Fatalf("%+v became %+v, %v", c, again, err)
		}
	})
}

func TestMessageThatBreaksOffIsNoEnd(t *testing.T) {
	broken := errors.New("connection reset")
	s := newSession(&Client{}, "id", false)
	r := newRig(t)
	live := r.open(core.PTYSpec{Command: "sleep 86426"})
	live.mu.Lock()
	l := live.link
	live.mu.Unlock()
	room := int64(-1)
	err := s.binary(l, io.MultiReader(strings.NewReader("\x01abc"), failing{broken}), make([]byte, 8), &room)
	if !errors.Is(err, broken) || s.received != 3 {
		t.Fatalf("%v after %d bytes", err, s.received)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
