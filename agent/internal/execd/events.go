package execd

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// pingEvery is how often a stream gives a sign of life.
const pingEvery = 3 * time.Second

// event is one of a stream: a JSON object with an empty line behind it.
type event struct {
	Type          string      `json:"type"`
	Text          string      `json:"text,omitempty"`
	ExecutionTime int64       `json:"execution_time,omitempty"` // milliseconds
	Timestamp     int64       `json:"timestamp"`                // milliseconds
	Error         *eventError `json:"error,omitempty"`
}

type eventError struct {
	Name      string   `json:"ename"`
	Value     string   `json:"evalue"`
	Traceback []string `json:"traceback"`
}

// commandError is the name of every error that ends a command.
const commandError = "CommandExecError"

func ended(value, reason string) event {
	return event{Type: "error", Error: &eventError{Name: commandError, Value: value, Traceback: []string{reason}}}
}

// stream tells a client of a command. What is told once the client has gone is
// dropped: commands do not depend on their clients. It is safe for concurrent use.
type stream struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	held bool // something is written that has not been sent
	over bool // the client has gone, or the handler that served it
}

func newStream(w http.ResponseWriter) *stream {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("Connection", "keep-alive")
	h.Set("X-Accel-Buffering", "no")
	h.Set("Transfer-Encoding", "chunked") // also where all of it is there before the first of it is sent
	return &stream{w: w}
}

// send tells events, all of them at once.
func (s *stream) send(all ...event) { s.raw(encode(all)) }

// hold tells events with what comes next: the next ones, flush, or the end of the request.
func (s *stream) hold(all ...event) { s.write(encode(all), false) }

func encode(all []event) []byte {
	now := time.Now().UnixMilli()
	var p []byte
	for i := range all {
		all[i].Timestamp = now
		one, err := json.Marshal(all[i])
		if err != nil {
			continue // strings and numbers always marshal
		}
		p = append(append(p, one...), '\n', '\n')
	}
	return p
}

// fail tells an error that came up after the stream had begun.
func (s *stream) fail(code, message string) {
	if p, err := json.Marshal(failure{Code: code, Message: message}); err == nil {
		s.raw(p)
	}
}

func (s *stream) raw(p []byte) { s.write(p, true) }

// flush sends what is held.
func (s *stream) flush() { s.write(nil, true) }

func (s *stream) write(p []byte, send bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || len(p) == 0 && !s.held {
		return
	}
	if len(p) > 0 {
		if _, err := s.w.Write(p); err != nil {
			s.over = true
			return
		}
		s.held = true
	}
	if !send {
		return
	}
	s.held = false
	if http.NewResponseController(s.w).Flush() != nil {
		s.over = true
	}
}

// close lets go of the client. The handler does it before it returns.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
}

// beat gives a sign of life now and then until stop is closed.
func (s *stream) beat(stop <-chan struct{}) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.send(ping())
		case <-stop:
			return
		}
	}
}

func ping() event { return event{Type: "ping", Text: "pong"} }
