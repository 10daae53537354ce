package pty

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

var pieces = sync.Pool{New: func() any { b := make([]byte, proto.MaxChunk); return &b }}

// receive takes messages until the connection ends or the process exits; greeting: until the session is attached.
func (s *Session) receive(l *link, greeting bool) error {
	buf := pieces.Get().(*[]byte)
	defer pieces.Put(buf)
	room := int64(-1) // how much may arrive before anybody can read it; -1: they can
	if greeting {
		room = proto.RingSize + 2*proto.MaxChunk
	}
	for {
		if err := l.patience.Extend(); err != nil {
			return err
		}
		kind, r, err := l.conn.NextReader()
		if err != nil {
			return err
		}
		if kind == websocket.TextMessage {
			attached, err := s.control(l, r)
			if err != nil || attached && greeting {
				return err
			}
			continue
		}
		if err := s.binary(l, r, *buf, &room); err != nil {
			return err
		}
	}
}

// control takes a text message.
func (s *Session) control(l *link, r io.Reader) (attached bool, err error) {
	p, err := io.ReadAll(io.LimitReader(r, proto.MaxControl+1))
	if err != nil {
		return false, err
	}
	if len(p) > proto.MaxControl {
		return false, &protocolError{fmt.Errorf("malformed frame: a text message of more than %d bytes", proto.MaxControl)}
	}
	c, err := proto.DecodeControl(p)
	if err != nil {
		return false, &protocolError{err}
	}
	switch c.Type {
	case proto.TypeConnected:
		s.mu.Lock()
		defer s.mu.Unlock()
		l.sent = s.in.greeted(c, s.mode == "")
		if l.flow = c.Flow; l.flow {
			l.tell(s.received)
		}
		s.mode = c.Mode
		s.changed.fire()
		return true, nil
	case proto.TypeTaken:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.in.hears(c.Offset)
		if s.crowded > 0 {
			s.changed.fire()
		}
		return false, nil
	case proto.TypeExit:
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.mode == "" {
			return false, &protocolError{errors.New("the process exited before the session was attached")}
		}
		if l.deaf {
			return false, errLinkDown // output before it was not taken: it will come again
		}
		s.exited, s.code = true, -1
		if c.ExitCode != nil {
			s.code = *c.ExitCode
		}
		s.changed.fire()
		return false, errExit
	case proto.TypeError:
		if c.Code == proto.CodeHeld {
			return false, &statusError{status: 409, code: c.Code, text: clip(c.Error)}
		}
		return false, &protocolError{fmt.Errorf("the server reports %s: %s", clip(c.Code), clip(c.Error))}
	}
	return false, nil // of no use here: a pong
}

// binary takes output in pieces, without waiting for the whole message. A piece is as much as servers send at once
// while a program prints on and on: whoever reads it is not woken for less.
func (s *Session) binary(l *link, r io.Reader, buf []byte, room *int64) error {
	var head [proto.ReplayHeader]byte
	if _, err := io.ReadFull(r, head[:1]); err != nil {
		return ignoreEnd(err)
	}
	to, skip := core.Stdout, int64(0)
	switch head[0] {
	case proto.Stdout:
	case proto.Stderr:
		to = core.Stderr
	case proto.Replay:
		if _, err := io.ReadFull(r, head[1:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				return &protocolError{errors.New("malformed frame: a replay without its offset")}
			}
			return err
		}
		offset, err := proto.ReplayOffset(head[1:])
		if err != nil {
			return &protocolError{err}
		}
		skip = s.replayed(offset)
	default:
		_, err := io.CopyBuffer(io.Discard, r, buf)
		return err
	}
	for {
		if err := l.patience.Extend(); err != nil {
			return err
		}
		n, err := io.ReadFull(r, buf)
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = io.EOF // of the message
		}
		p := buf[:n]
		seen := min(skip, int64(n))
		skip -= seen
		if p = p[seen:]; len(p) > 0 {
			if *room >= 0 {
				if *room -= int64(len(p)); *room < 0 {
					return &protocolError{errors.New("malformed frame: more is replayed than a session retains")}
				}
			}
			if perr := s.put(l, to, p, *room >= 0); perr != nil {
				return perr
			}
		}
		if err != nil {
			return ignoreEnd(err)
		}
	}
}

func ignoreEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// replayed notes where a replay begins and gives how much of it has arrived before.
func (s *Session) replayed(offset int64) (skip int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.replay = offset
	missing := offset - s.received
	if missing <= 0 {
		return -missing
	}
	// Whoever attaches sees it by the offset; a reader has to be told in its place.
	if s.mode != "" {
		s.out[core.Stdout].addGap(&core.PTYGap{Bytes: missing, At: s.received})
		s.changed.fire()
	}
	s.received = offset
	return 0
}

// put hands output to the readers and waits while they have enough, unless there can't be any yet.
func (s *Session) put(l *link, to core.Stream, p []byte, greeting bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !l.deaf && !greeting && s.out[to].size > 0 && s.out[to].size+len(p) > maxBuffered {
		if l.leaving.Load() {
			l.deaf = true // it will come again
			break
		}
		ch := s.changed.wait()
		s.mu.Unlock()
		select {
		case <-ch:
		case <-l.done:
		}
		s.mu.Lock()
		select {
		case <-l.done:
			return errLinkDown
		default:
		}
	}
	if l.deaf {
		return nil
	}
	n := 0
	if !greeting {
		n = s.divert(to, p)
	}
	s.received += int64(len(p))
	l.arrived(s.received)
	if n < len(p) {
		s.out[to].add(p[n:])
		s.changed.fire()
	}
	return nil
}
