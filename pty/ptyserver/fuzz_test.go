package ptyserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// still is a process that does nothing but note its signals.
type still struct{ got []syscall.Signal }

func (s *still) Done() <-chan struct{}     { return nil }
func (s *still) Code() int                 { return 0 }
func (s *still) Signal(sig syscall.Signal) { s.got = append(s.got, sig) }
func (s *still) End()                      {}

// patientConn is a connection to a client that takes everything and says nothing.
func patientConn(f *testing.F) *websocket.Conn {
	conns := make(chan *websocket.Conn)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := upgrader.Upgrade(w, r, nil); err == nil {
			conns <- c
		}
	}))
	client, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(h.URL, "http"), nil)
	if err != nil {
		f.Fatal(err)
	}
	taken := make(chan struct{})
	go func() {
		defer close(taken)
		for {
			if _, _, err := client.ReadMessage(); err != nil {
				return
			}
		}
	}()
	conn := <-conns
	f.Cleanup(func() {
		_ = conn.Close()
		_ = client.Close()
		<-taken
		h.Close()
	})
	return conn
}

// FuzzClientMessages gives a session whatever a client could send: first a byte that tells text from binary and the length's
// upper half, then the lower half, then the message. Whoever could connect is not trusted with more than its session.
func FuzzClientMessages(f *testing.F) {
	message := func(kind byte, p string) []byte {
		return append([]byte{kind<<7 | byte(len(p)>>8), byte(len(p))}, p...)
	}
	for _, p := range []string{
		`{"type":"resize","cols":120,"rows":40}`, `{"type":"resize","cols":-1,"rows":70000}`, `{"type":"signal","signal":"SIGINT"}`,
		`{"type":"signal","signal":"SIGSEGV"}`, `{"type":"stdin","data":"x\u0000"}`, `{"type":"ack","offset":7}`, `{"type":"ack","offset":-1}`,
		`{"type":"ack","offset":9223372036854775807}`, `{"type":"ping"}`, `{"type":"exit","exit_code":0}`, `{"type":`, "null", "",
	} {
		f.Add(message(0, p), true)
	}
	for _, p := range []string{"", "\x00", "\x00input", "\x01output", "\x03\x00\x00\x00\x00\x00\x00\x00\x07x", "\xff"} {
		f.Add(append(message(1, p), message(0, `{"type":"stdin","data":"y"}`)...), false)
	}
	conn := patientConn(f)
	srv := &Server{budget: NewBudget(64 << 20), times: standard}
	f.Fuzz(func(t *testing.T, data []byte, flow bool) {
		if len(data) >= proto.MaxInput {
			return // a client that is not told what was taken waits for it here
		}
		proc := &still{}
		s := newSession(srv, "id", Spec{}, 24, 80)
		s.state, s.proc, s.streams = running, proc, &streams{}
		defer s.ring.release()
		s.ring.write([]byte("some output"))
		h := newHolder(s, conn, flow)
		if err := s.attach(h, false, 0, true); err != nil {
			t.Fatal(err)
		}
		var typed []byte
		got := s.got
		for len(data) >= 2 {
			kind, n := data[0]>>7, min(int(data[0]&0x7f)<<8|int(data[1]), len(data)-2)
			p := data[2 : 2+n]
			data = data[2+n:]
			if kind == 1 {
				if err := h.binary(bytes.NewReader(p)); err != nil {
					t.Fatalf("%q ends the connection: %v", p, err)
				}
				if len(p) > 0 && p[0] == proto.Stdin {
					typed = append(typed, p[1:]...)
				}
			} else {
				if err := h.text(bytes.NewReader(p)); err != nil {
					t.Fatalf("%q ends the connection: %v", p, err)
				}
				var c proto.Control
				if json.Unmarshal(p, &c) == nil && c.Type == proto.TypeStdin {
					typed = append(typed, c.Data...)
				}
			}
			if s.got < got || s.got > s.ring.total {
				t.Fatalf("%q: %d bytes have arrived of %d, after %d", p, s.got, s.ring.total, got)
			}
			got = s.got
			if !proto.ValidSize(s.rows, s.cols) {
				t.Fatalf("%q: the size became %d x %d", p, s.rows, s.cols)
			}
		}
		if !bytes.Equal(s.input, typed) || s.inputSize != len(typed) || s.accepted != int64(len(typed)) {
			t.Fatalf("%q waits for the process, counted as %d; %q was typed", s.input, s.inputSize, typed)
		}
		for _, sig := range proc.got {
			if !slices.Contains([]syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGTERM}, sig) {
				t.Fatalf("the process got %v", sig)
			}
		}
	})
}
