package ptyserver

import (
	"os"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/prompt"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// write queues input of the holder. It waits for room for one that is not told
// what was taken; the others know how much they may send. false: h is not the holder, or sends too much.
func (s *session) write(h *holder, p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !h.flow && s.holder == h && s.state != ended && s.inputSize >= proto.MaxInput {
		s.changed.Wait()
	}
	if s.holder != h || h.flow && s.inputSize+len(p) > 2*proto.MaxInput {
		return false
	}
	if s.state == ended {
		return true
	}
	s.accepted += int64(len(p))
	if p = p[s.writeNow(p):]; len(p) > 0 {
		s.input = append(s.input, p...)
		s.inputSize += len(p)
		s.typed.Signal()
	}
	return true
}

// writeNow gives the process what it takes of p without waiting, when nothing is to come before. mu is held.
func (s *session) writeNow(p []byte) int {
	if s.state != running || s.inputSize > 0 || s.typing == nil {
		return 0
	}
	n, err := prompt.TryWrite(s.typing, p)
	if err != nil {
		return 0 // feed meets it too
	}
	if n > 0 {
		s.hasTaken(n)
	}
	return n
}

// feed gives the queued input to the process.
func (s *session) feed(in *os.File) {
	for {
		s.mu.Lock()
		for s.state != ended && len(s.input) == 0 {
			s.typed.Wait()
		}
		if s.state == ended {
			s.input, s.inputSize = nil, 0
			s.mu.Unlock()
			return
		}
		p := s.input
		s.input = nil
		s.mu.Unlock()
		for len(p) > 0 {
			n := min(len(p), feedPiece)
			// A process may close its input and go on: the rest is dropped.
			_, _ = in.Write(p[:n])
			p = p[n:]
			s.mu.Lock()
			s.inputSize -= n
			s.hasTaken(n)
			s.mu.Unlock()
		}
	}
}

// feedPiece is how much input is written before it is counted as taken.
const feedPiece = 16 << 10
