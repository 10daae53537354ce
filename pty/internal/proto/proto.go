// Package proto is what client and server of terminal sessions say to each other.
//
//	POST   {base}/pty            Create -> Created
//	GET    {base}/pty/{id}       -> Info
//	DELETE {base}/pty/{id}
//	GET    {base}/pty/{id}/ws    websocket; query: pty=0, since=N, takeover=1, flow=1, holder=NAME, back=1
//
// With flow=1, which not every server knows, both sides tell each other what has
// arrived. Then output waits for a client that has not got it, however much the
// connection between them can hold, and input is sent again that got lost with one.
// A client that gives itself a name says with back=1 that its connection got lost: it
// is let in again only if nobody else has held the session since.
//
// A binary message begins with a byte that names its channel, a text message is
// a JSON Control. All offsets count the bytes of a session's whole output,
// stdout and stderr together in the order in which they were read.
package proto

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// Channels of binary messages.
const (
	Stdin  byte = 0 // to the server
	Stdout byte = 1 // all output of a terminal
	Stderr byte = 2 // of a session without a terminal
	Replay byte = 3 // ReplayHeader, then retained output from that offset on
)

const (
	// ReplayHeader is the length of a replay's channel byte and its offset.
	ReplayHeader = 9
	// MaxChunk is the most output in one message that is no replay.
	MaxChunk = 32 << 10
	// RingSize is how much output a session retains.
	RingSize = 1 << 20
	// MaxInput is how much input may be under way to a process that does not read.
	MaxInput = 256 << 10
	// AckEvery is after how many bytes a client tells that they have arrived: few enough for the smallest ring.
	AckEvery = 16 << 10
	// MaxControl bounds a text message.
	MaxControl = 1 << 20
)

// Codes of close messages.
const (
	CloseTakenOver = 4001 // another client holds the session now
	CloseComesBack = 4002 // from a client that will be back within seconds: its output is to wait
	CloseRefused   = 1008 // what a proxy makes of a refused handshake
)

// Reasons in close messages.
const (
	ReasonTakenOver = "TAKEN_OVER"
	ReasonExited    = "process exited"
)

// Types of a Control.
const (
	TypeConnected = "connected"
	TypeExit      = "exit"
	TypeError     = "error"
	TypePong      = "pong"
	TypePing      = "ping"
	TypeStdin     = "stdin"
	TypeResize    = "resize"
	TypeSignal    = "signal"
	TypeAck       = "ack"   // output before Offset has arrived
	TypeTaken     = "taken" // the process has been given input before Offset
)

// Codes of error messages and of failed requests.
const (
	CodeNotFound     = "CONTEXT_NOT_FOUND"
	CodeHeld         = "ALREADY_CONNECTED"
	CodeBadBody      = "INVALID_REQUEST_BODY"
	CodeBadFrame     = "INVALID_FRAME"
	CodeStartFailed  = "START_FAILED"
	CodeStdinFailed  = "STDIN_WRITE_FAILED"
	CodeRuntime      = "RUNTIME_ERROR"
	CodeTooMany      = "TOO_MANY_SESSIONS"
	modePTY          = "pty"
	modePipe         = "pipe"
	maxTerminalSpace = 1<<16 - 1 // the kernel keeps rows and columns in 16 bits
)

// Mode is the word for a session with or without a terminal.
func Mode(pty bool) string {
	if pty {
		return modePTY
	}
	return modePipe
}

// ValidSize tells whether a terminal can have that size.
func ValidSize(rows, cols int) bool {
	return rows > 0 && cols > 0 && rows <= maxTerminalSpace && cols <= maxTerminalSpace
}

// Create is the body that makes a session. Servers that know only cwd and
// command ignore the rest.
type Create struct {
	Cwd     string            `json:"cwd,omitempty"`
	Command string            `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	Rows    int               `json:"rows,omitempty"`
	Cols    int               `json:"cols,omitempty"`
}

// Created is the answer to Create. Rows and Cols are set by a server that sizes
// the terminal before its process starts.
type Created struct {
	SessionID string `json:"session_id"`
	Rows      int    `json:"rows,omitempty"`
	Cols      int    `json:"cols,omitempty"`
}

// Info describes a session. ExitCode is set once a retained process has ended.
type Info struct {
	SessionID    string `json:"session_id"`
	Running      bool   `json:"running"`
	OutputOffset int64  `json:"output_offset"`
	ExitCode     *int   `json:"exit_code,omitempty"`
}

// Failure is the body of a refused request.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Control is a text message; which fields count depends on its type.
type Control struct {
	Type      string `json:"type"`
	SessionID string `json:"session_id,omitempty"`
	Mode      string `json:"mode,omitempty"`
	ExitCode  *int   `json:"exit_code,omitempty"`
	Error     string `json:"error,omitempty"`
	Code      string `json:"code,omitempty"`
	Data      string `json:"data,omitempty"`
	Cols      int    `json:"cols,omitempty"`
	Rows      int    `json:"rows,omitempty"`
	Signal    string `json:"signal,omitempty"`
	Offset    int64  `json:"offset,omitempty"`

	// Of TypeConnected: both sides tell what has arrived, and how much input the session has
	// accepted, and given to its process, so far.
	Flow     bool  `json:"flow,omitempty"`
	Accepted int64 `json:"accepted,omitempty"`
	Taken    int64 `json:"taken,omitempty"`
}

// Line is the message as servers send it, with a line feed.
func (c Control) Line() []byte { return append(c.Encode(), '\n') }

// Encode is the message's text.
func (c Control) Encode() []byte {
	p, err := json.Marshal(c)
	if err != nil {
		// Strings and numbers always marshal.
		panic(err)
	}
	return p
}

// DecodeControl reads a text message.
func DecodeControl(p []byte) (Control, error) {
	var c Control
	if err := json.Unmarshal(p, &c); err != nil {
		return Control{}, fmt.Errorf("malformed frame: %w", err)
	}
	return c, nil
}

// AppendReplayHeader begins a replay of output from an offset on.
func AppendReplayHeader(dst []byte, offset int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, Replay), uint64(offset))
}

// maxOffset is more than any process prints, and leaves room to count on from there.
const maxOffset = 1 << 62

// ReplayOffset reads the offset of a replay, which is behind the channel byte.
func ReplayOffset(head []byte) (int64, error) {
	if len(head) != ReplayHeader-1 {
		return 0, errors.New("malformed frame: a replay without its offset")
	}
	offset := int64(binary.BigEndian.Uint64(head))
	if offset < 0 || offset > maxOffset {
		return 0, fmt.Errorf("malformed frame: a replay at offset %d", uint64(offset))
	}
	return offset, nil
}

// Signals are the names that a session takes.
var Signals = []string{"SIGHUP", "SIGINT", "SIGKILL", "SIGQUIT", "SIGTERM"}
