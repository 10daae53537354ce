// Package prompt sends short websocket messages at once, from a caller that must not wait: a key and its echo then need
// no other goroutine, which would have to be woken.
package prompt

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"syscall"
	"time"
)

// Most is how much a message can carry; what is longer is no key.
const Most = 4 << 10

// maxHead is what comes before a message's bytes: the frame's head with a mask, and the channel.
const maxHead = 4 + 4 + 1

// Wrapper is a connection around another one, on which bytes mean the same.
type Wrapper interface{ Plain() net.Conn }

// Conn is a connection on which can be written without waiting. Its methods are not for concurrent use, nor for use
// while somebody else writes.
type Conn struct {
	conn   net.Conn
	raw    syscall.RawConn
	masked bool
	buf    []byte
}

// New gives nil when that can't be done on a connection, such as one that is encrypted. A client's messages are masked.
func New(c net.Conn, client bool) *Conn {
	plain := c
	for {
		w, ok := plain.(Wrapper)
		if !ok {
			break
		}
		plain = w.Plain()
	}
	var raw syscall.RawConn
	var err error
	switch s := plain.(type) {
	case *net.TCPConn:
		raw, err = s.SyscallConn()
	case *net.UnixConn:
		raw, err = s.SyscallConn()
	default:
		return nil
	}
	if err != nil {
		return nil
	}
	return &Conn{conn: c, raw: raw, masked: client, buf: make([]byte, 0, maxHead+Most)}
}

// Send sends a binary message of a channel, of at most Most bytes. What the connection takes only later is left over: it
// has to be given to Finish before anything else is written.
func (c *Conn) Send(channel byte, p []byte) (left []byte, err error) {
	if len(p) > Most {
		return nil, errors.New("too much for one message")
	}
	msg := c.frame(channel, p)
	n, err := TryWrite(c.raw, msg)
	if err != nil {
		return nil, err
	}
	return msg[n:], nil
}

// Finish writes what Send left over. It waits as any write does.
func (c *Conn) Finish(left []byte) error {
	_, err := c.conn.Write(left)
	return err
}

// Claim takes the turn to write for who does not wait for it: turn holds one entry while a message is written. A nil Conn
// never gets it. Whoever has it ends it by SendClaimed, or takes the entry out.
func (c *Conn) Claim(turn chan struct{}) bool {
	if c == nil {
		return false
	}
	select {
	case turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// SendClaimed is Send for who has claimed the turn; it ends the claim once all of the message is written, which it does not
// wait for. patience bounds that; 0 is for ever. broke hears of an error as well, also of one that comes later.
func (c *Conn) SendClaimed(turn chan struct{}, channel byte, p []byte, patience time.Duration, broke func(error)) error {
	left, err := c.Send(channel, p)
	if err == nil && len(left) > 0 {
		go func() {
			defer func() { <-turn }()
			if err := c.finishIn(left, patience); err != nil {
				broke(err)
			}
		}()
		return nil
	}
	<-turn
	if err != nil {
		broke(err)
	}
	return err
}

func (c *Conn) finishIn(left []byte, patience time.Duration) error {
	if patience > 0 {
		if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
	}
	return c.Finish(left)
}

// frame makes a websocket message, whole in one frame.
func (c *Conn) frame(channel byte, p []byte) []byte {
	const (
		finalBinary = 0x82
		maskBit     = 0x80
		twoBytes    = 126
	)
	b := append(c.buf[:0], finalBinary)
	n, mask := 1+len(p), byte(0)
	if c.masked {
		mask = maskBit
	}
	if n < twoBytes {
		b = append(b, mask|byte(n))
	} else {
		b = binary.BigEndian.AppendUint16(append(b, mask|twoBytes), uint16(n))
	}
	var key [4]byte
	if c.masked {
		// Never fails: the runtime ends the program without randomness.
		_, _ = rand.Read(key[:])
		b = append(b, key[:]...)
	}
	at := len(b)
	b = append(append(b, channel), p...)
	if c.masked {
		for i := range b[at:] {
			b[at+i] ^= key[i%len(key)]
		}
	}
	c.buf = b
	return b
}

// TryWrite writes what a descriptor takes at once; 0 is no error. Deadlines do not matter to it. Nobody else may be
// writing.
func TryWrite(raw syscall.RawConn, p []byte) (n int, err error) {
	cerr := raw.Control(func(fd uintptr) {
		for {
			n, err = syscall.Write(int(fd), p)
			if !errors.Is(err, syscall.EINTR) {
				return
			}
		}
	})
	if errors.Is(err, syscall.EAGAIN) {
		err = nil
	}
	return max(n, 0), errors.Join(cerr, err)
}
