package opensandbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// maxEvent bounds one event: a line of output that a command printed without an end.
const maxEvent = 64 << 20

// event is one message of a command's stream.
type event struct {
	Type  string `json:"type"`
	Text  string `json:"text"`
	Error struct {
		Name      string   `json:"ename"`
		Value     string   `json:"evalue"`
		Traceback []string `json:"traceback"`
	} `json:"error"`

	// An object without a type is an error that was raised after the stream had begun.
	Code    string `json:"code"`
	Message string `json:"message"`
}

// errCut is a stream that ended before it said what became of the command.
var errCut = errors.New("the command's stream ended before its result")

// events reads a command's stream: one JSON object to a line, bare or as the data of a server-sent event.
type events struct {
	r *bufio.Reader
	b []byte
}

// readers keeps the buffers of streams that were read: most streams are short, and one of these is most of what
// a short command takes. They are small, since a thousand sandboxes that are made at once need as many.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 8<<10) }}

// newEvents reads the stream r. Whoever asks for it lets go of it.
func newEvents(r io.Reader) *events {
	e := &events{r: readers.Get().(*bufio.Reader)}
	e.r.Reset(r)
	return e
}

// letGo ends the reading.
func (e *events) letGo() {
	e.r.Reset(nil)
	readers.Put(e.r)
	e.r = nil
}

// next gives the next event. errCut when there is none, whatever ended the stream.
func (e *events) next() (event, error) {
	var ev event
	for {
		line, err := e.line()
		if text := payload(line); len(text) > 0 {
			if said, ok := plainEvent(text); ok {
				return said, nil
			}
			if jerr := json.Unmarshal(text, &ev); jerr != nil {
				if err != nil {
					return ev, fmt.Errorf("%w, in the middle of an event", errCut)
				}
				return ev, fmt.Errorf("%w: it holds something that is no event", errCut)
			}
			return ev, nil
		}
		switch {
		case errors.Is(err, io.EOF):
			return ev, errCut
		case err != nil:
			return ev, fmt.Errorf("%w: %w", errCut, err)
		}
	}
}

// waiting tells whether another whole event has come already.
func (e *events) waiting() bool {
	p, _ := e.r.Peek(e.r.Buffered()) // no more than there is: it does not fail
	return bytes.IndexByte(bytes.TrimLeft(p, "\r\n"), '\n') >= 0
}

// plainEvent reads an event as nearly all are: an object of a type, a text and numbers, with nothing in it that JSON
// could write in another way. A command that prints much consists of these, and a short one of little else.
func plainEvent(text []byte) (ev event, ok bool) {
	rest, ok := bytes.CutPrefix(text, []byte("{"))
	for ok {
		var name, value []byte
		if name, rest, ok = plainString(rest); !ok {
			break
		}
		if rest, ok = bytes.CutPrefix(rest, []byte(":")); !ok {
			break
		}
		switch string(name) {
		case "type":
			value, rest, ok = plainString(rest)
			ev.Type = string(value)
		case "text":
			value, rest, ok = plainString(rest)
			ev.Text = string(value)
		case "timestamp", "execution_time", "execution_count":
			digits := len(rest) - len(bytes.TrimLeft(rest, "0123456789"))
			ok = digits == 1 || digits > 1 && rest[0] != '0'
			rest = rest[digits:]
		default:
			ok = false
		}
		if !ok || len(rest) == 0 {
			break
		}
		if len(rest) == 1 && rest[0] == '}' {
			return ev, ev.Type != ""
		}
		rest, ok = bytes.CutPrefix(rest, []byte(","))
	}
	return event{}, false
}

// plainString reads a JSON string that stands for itself.
func plainString(p []byte) (value, rest []byte, ok bool) {
	p, ok = bytes.CutPrefix(p, []byte(`"`))
	if !ok {
		return nil, nil, false
	}
	end := bytes.IndexByte(p, '"')
	if end < 0 || !utf8.Valid(p[:end]) {
		return nil, nil, false
	}
	for _, c := range p[:end] {
		if c < ' ' || c == '\\' {
			return nil, nil, false
		}
	}
	return p[:end], p[end+1:], true
}

// payload is what of a line is JSON.
func payload(line []byte) []byte {
	line = bytes.TrimSpace(line)
	if rest, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		return bytes.TrimSpace(rest)
	}
	if len(line) == 0 || line[0] == '{' {
		return line
	}
	for _, field := range []string{":", "event:", "id:", "retry:"} {
		if bytes.HasPrefix(line, []byte(field)) {
			return nil
		}
	}
	return line
}

func (e *events) line() ([]byte, error) {
	e.b = e.b[:0]
	for {
		part, err := e.r.ReadSlice('\n')
		e.b = append(e.b, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return e.b, err
		}
		if len(e.b) > maxEvent {
			return nil, fmt.Errorf("it holds an event of more than %d bytes", maxEvent)
		}
	}
}

// maxHeld bounds the output that is put together before it is given on.
const maxHeld = 64 << 10

// lines puts lines of output together again. How the last one ended is not told, so it gets no end.
type lines struct {
	sink  core.Sink
	begun [2]bool
	shut  [2]bool // the receiver wants no more of that stream
	held  []byte  // not given on yet
	of    core.Stream
}

func (l *lines) write(s core.Stream, text string) {
	if l.shut[s] {
		return
	}
	if text == "\n" {
		text = "" // how an empty line is told
	}
	if s != l.of || len(l.held)+len(text) > maxHeld {
		l.flush()
	}
	l.of = s
	if l.begun[s] {
		l.held = append(l.held, '\n')
	}
	l.begun[s] = true
	l.held = append(l.held, text...)
}

// flush gives on what is held.
func (l *lines) flush() {
	p := l.held
	l.held = l.held[:0]
	if len(p) > 0 && !l.shut[l.of] && l.sink.Write(l.of, p) != nil {
		l.shut[l.of] = true
	}
}

// codeOfValue reads a reported error's value and reasons as an exit code.
func codeOfValue(value string, reasons []string) (code int, ok bool) {
	n, err := strconv.Atoi(strings.TrimSpace(value))
	if err != nil {
		return 0, false
	}
	if n >= 0 {
		return n, true
	}
	for _, r := range reasons {
		if sig := signalOf(r); sig > 0 {
			return 128 + sig, true
		}
	}
	return n, true
}

// signalOf reads "signal: killed (core dumped)".
func signalOf(reason string) int {
	_, name, ok := strings.Cut(reason, "signal: ")
	if !ok {
		return 0
	}
	name = strings.TrimSpace(strings.TrimSuffix(name, " (core dumped)"))
	for n := 1; n < 65; n++ {
		if syscall.Signal(n).String() == name {
			return n
		}
	}
	if n, err := strconv.Atoi(strings.TrimPrefix(name, "signal ")); err == nil && n > 0 && n < 65 {
		return n
	}
	return 0
}
