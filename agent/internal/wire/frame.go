// Package wire is the protocol between the agent in a sandbox and its client on
// the host: authentication, frames, and descriptors passed beside them.
//
// One byte stream carries one operation at a time, so the stream's own flow
// control is the operation's back-pressure and its end is the operation's
// cancellation. A stream is a unix socket where the sandbox runs on this host,
// else a stream of a multiplexed connection. What the agent sends is untrusted:
// every length is checked before memory is taken for it.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Version is the protocol's version; both sides must have the same.
const Version = 1

// Type says what a frame's payload is.
type Type uint8

// The frames. Those of the host are requests, Cancel and Stdin; the rest are the agent's.
const (
	Request  Type = 1 // JSON Req: begins an operation
	Cancel   Type = 2 // ends the operation: its process tree is killed
	Stdin    Type = 3 // bytes for the command; empty means end of file
	Accepted Type = 4 // the operation is under way, sent when it is not over at once
	Out      Type = 5 // bytes of stdout, or of a file
	Err      Type = 6 // bytes of stderr
	Meta     Type = 7 // JSON FileMeta: a download begins
	Result   Type = 8 // JSON Res: the operation is over, the stream is free
	Farewell Type = 9 // JSON Goodbye: the sandbox ends

	// StdinTaken answers a Stdin frame that the command's pipe has taken.
	StdinTaken Type = 10
)

// StdinWindow is how many Stdin frames may be under way without StdinTaken:
// a command that does not read must not keep a Cancel behind them from arriving.
const StdinWindow = 4

const (
	headerLen = 5
	// MaxData bounds one frame of bytes.
	MaxData = 64 << 10
	// MaxRequest bounds a request: a command and its environment.
	MaxRequest = 64 << 20
	// maxReply bounds what the host accepts from the agent in one frame.
	maxReply = 1 << 20
)

// Stream frames a byte stream. Reads are by one goroutine at a time, writes by any number.
type Stream struct {
	net.Conn
	max  int
	head [headerLen]byte
	recv *net.UnixConn // set on the agent's side of a unix socket: descriptors may arrive
	fds  []int

	mu  sync.Mutex // held while a frame is written, so that frames stay whole
	out []byte
}

// NewHostStream frames the host's end of a stream.
func NewHostStream(c net.Conn) *Stream { return &Stream{Conn: c, max: maxReply} }

// NewAgentStream frames the agent's end of a stream.
func NewAgentStream(c net.Conn) *Stream {
	s := &Stream{Conn: c, max: MaxRequest}
	s.recv, _ = c.(*net.UnixConn)
	return s
}

// Read reads bytes and keeps descriptors that arrive with them.
func (s *Stream) Read(p []byte) (int, error) {
	if s.recv == nil {
		return s.Conn.Read(p)
	}
	var oob [128]byte
	n, oobn, _, _, err := s.recv.ReadMsgUnix(p, oob[:])
	if oobn > 0 {
		s.keep(oob[:oobn])
	}
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

func (s *Stream) keep(oob []byte) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
		s.fds = append(s.fds, fds...)
	}
}

// TakeFDs gives the descriptors that arrived since the last call; the caller closes them.
func (s *Stream) TakeFDs() []int {
	fds := s.fds
	s.fds = nil
	return fds
}

// ReadFrame reads one frame. The payload is in buf when it fits, else in new memory.
func (s *Stream) ReadFrame(buf []byte) (Type, []byte, error) {
	if _, err := io.ReadFull(s, s.head[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.LittleEndian.Uint32(s.head[:]))
	t := Type(s.head[4])
	limit := s.max
	if t == Stdin || t == Out || t == Err {
		limit = MaxData
	}
	if n > limit {
		return 0, nil, fmt.Errorf("frame of %d bytes is over the limit of %d", n, limit)
	}
	if n > cap(buf) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(s, buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return t, buf, nil
}

// WriteFrame writes one frame; fds, if any, travel with it over a unix socket.
func (s *Stream) WriteFrame(t Type, payload []byte, fds ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = binary.LittleEndian.AppendUint32(s.out[:0], uint32(len(payload)))
	s.out = append(append(s.out, byte(t)), payload...)
	rest := s.out
	if len(fds) > 0 {
		uc, ok := s.Conn.(*net.UnixConn)
		if !ok {
			return errors.New("descriptors can't be passed over this stream")
		}
		n, _, err := uc.WriteMsgUnix(rest, unix.UnixRights(fds...), nil)
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	_, err := s.Write(rest)
	if cap(s.out) > 2*MaxData {
		s.out = nil
	}
	return err
}

// WriteJSON writes one frame with v as its payload.
func (s *Stream) WriteJSON(t Type, v any, fds ...int) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.WriteFrame(t, p, fds...)
}

// Close closes the stream and the descriptors that nobody took.
func (s *Stream) Close() error {
	err := s.Conn.Close()
	for _, fd := range s.fds {
		_ = unix.Close(fd)
	}
	s.fds = nil
	return err
}
