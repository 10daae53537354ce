package daemon

import (
	"os"
	"sync"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/wire"
)

// stdin carries a command's input from the frames of its stream to its pipe.
type stdin struct {
	chunks chan []byte
	closed chan struct{}
	once   sync.Once
}

func newStdin() *stdin {
	return &stdin{chunks: make(chan []byte, wire.StdinWindow+1), closed: make(chan struct{})}
}

// write hands on one frame without waiting; an empty one is the end of file.
// false: the client sent more than the window allows.
func (s *stdin) write(p []byte) bool {
	select {
	case <-s.closed:
		return true // the command has ended or does not read any more
	default:
	}
	select {
	case s.chunks <- append([]byte(nil), p...):
		return true
	default:
		return false
	}
}

func (s *stdin) close() { s.once.Do(func() { close(s.closed) }) }

// copyTo feeds the command, reports each frame as taken, and closes w.
func (s *stdin) copyTo(w *os.File, taken func() error) {
	defer w.Close()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		// Ends a write to a command that does not read any more.
		select {
		case <-s.closed:
			_ = w.Close()
		case <-ended:
		}
	}()
	broken := false
	for {
		select {
		case p := <-s.chunks:
			if len(p) == 0 {
				return
			}
			if !broken {
				// A command may close its input and work on: the rest is taken and dropped.
				_, err := w.Write(p)
				broken = err != nil
			}
			if taken() != nil {
				return
			}
		case <-s.closed:
			return
		}
	}
}
