package opensandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// heard is what the server heard: a message, a pong, or the end.
type heard struct {
	kind int
	p    []byte
	code int
}

// socketServer plays one socket, message by message.
type socketServer struct {
	*wireSocket
	t      *testing.T
	token  string
	query  chan string // of the handshake
	wrong  chan string // what the client did otherwise than recorded
	ponged chan struct{}
	done   chan struct{}
}

func (s *socketServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	switch {
	case req.Header.Get(headerToken) != s.token:
		http.Error(w, "no token", http.StatusTeapot)
	case strings.HasSuffix(req.URL.Path, "/ws"):
		s.socket(w, req)
	case req.Method == http.MethodPost:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"session_id":"`+s.id+`"}`)
	case req.Method == http.MethodGet:
		_, _ = io.WriteString(w, `{"session_id":"`+s.id+`","running":true,"output_offset":0}`)
	}
}

func (s *socketServer) socket(w http.ResponseWriter, req *http.Request) {
	select {
	case s.query <- req.URL.RequestURI():
	default:
		http.Error(w, "it was asked for once more", http.StatusTeapot)
		return
	}
	defer close(s.done)
	if s.opened.Status != http.StatusSwitchingProtocols {
		w.WriteHeader(s.opened.Status)
		_, _ = fmt.Fprintf(w, `{"code":%q,"message":"x"}`, map[int]string{404: "CONTEXT_NOT_FOUND", 409: "ALREADY_CONNECTED"}[s.opened.Status])
		return
	}
	u := websocket.Upgrader{}
	c, err := u.Upgrade(w, req, nil)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	from := make(chan heard, 100)
	c.SetPongHandler(func(string) error { from <- heard{kind: websocket.PongMessage}; return nil })
	go func() {
		defer close(from)
		for {
			kind, p, err := c.ReadMessage()
			var bye *websocket.CloseError
			if errors.As(err, &bye) {
				from <- heard{kind: websocket.CloseMessage, code: bye.Code}
			}
			if err != nil {
				return
			}
			from <- heard{kind: kind, p: p}
		}
	}()
	for _, f := range s.frames {
		over, wrong := s.play(c, f, from)
		if wrong != "" {
			s.wrong <- f.key() + ": " + wrong
		}
		if over {
			break
		}
	}
	_ = c.Close()
	for range from { // until its reader has ended
	}
}

// play sends one message, or takes one and compares it. over tells that nothing follows.
func (s *socketServer) play(c *websocket.Conn, f *wireLine, from <-chan heard) (over bool, wrong string) {
	if f.unsent() != "" || strings.Contains(f.Text, "INVALID_FRAME") {
		return false, ""
	}
	closing := f.Kind == "ws_close" || f.Kind == "ws_eof"
	if f.Dir != "c>s" {
		switch {
		case closing && f.Code == nil:
			return true, ""
		case closing:
			_ = c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(*f.Code, f.Reason), time.Now().Add(time.Second))
			return true, ""
		case f.Kind == "ws_ping":
			_ = c.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
		case f.Kind == "ws_text":
			_ = c.WriteMessage(websocket.TextMessage, []byte(f.Text))
		default:
			_ = c.WriteMessage(websocket.BinaryMessage, f.content(s.t))
		}
		return false, ""
	}
	var got heard
	select {
	case h, ok := <-from:
		if !ok {
			return true, "the client has gone"
		}
		got = h
	case <-time.After(wireSoon):
		return true, "the client says nothing"
	}
	switch {
	case closing:
		if got.kind != websocket.CloseMessage || got.code != *f.Code {
			return true, fmt.Sprintf("%v instead of the end with code %d", got, *f.Code)
		}
		return true, ""
	case f.Kind == "ws_pong":
		if got.kind != websocket.PongMessage {
			return false, fmt.Sprintf("%v instead of a pong", got)
		}
		s.ponged <- struct{}{}
	case f.Kind == "ws_text":
		var a, b any
		if got.kind != websocket.TextMessage || json.Unmarshal(got.p, &a) != nil || json.Unmarshal([]byte(f.Text), &b) != nil || !reflect.DeepEqual(a, b) {
			return false, fmt.Sprintf("%q instead of %q", got.p, f.Text)
		}
	default:
		want := f.content(s.t)
		for len(got.p) < len(want) && got.kind == websocket.BinaryMessage {
			next, ok := <-from
			if !ok || next.kind != websocket.BinaryMessage || len(next.p) == 0 || next.p[0] != 0 {
				return false, "another message in the middle of input"
			}
			got.p = append(got.p, next.p[1:]...)
			if len(got.p) == len(want) {
				differing(s.t, f.key(), "pieces")
			}
		}
		if got.kind != websocket.BinaryMessage || !bytes.Equal(got.p, want) {
			return false, fmt.Sprintf("%.100q instead of %.100q", got.p, want)
		}
	}
	return false, ""
}
