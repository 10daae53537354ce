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
	"syscall"

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

func newEvents(r io.Reader) *events { return &events{r: bufio.NewReaderSize(r, 32<<10)} }

// next gives the next event. errCut when there is none, whatever ended the stream.
func (e *events) next() (event, error) {
	var ev event
	for {
		line, err := e.line()
		if text := payload(line); len(text) > 0 {
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

// lines puts lines of output together again. How the last one ended is not told, so it gets no end.
type lines struct {
	sink  core.Sink
	begun [2]bool
	shut  [2]bool // the receiver wants no more of that stream
}

func (l *lines) write(s core.Stream, text string) {
	if l.shut[s] {
		return
	}
	if text == "\n" {
		text = "" // how an empty line is told
	}
	if l.begun[s] {
		text = "\n" + text
	}
	l.begun[s] = true
	if text != "" && l.sink.Write(s, []byte(text)) != nil {
		l.shut[s] = true
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
