package execd

import (
	"errors"
	"os"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/agent/internal/pump"
)

// piped is a process whose output is told as it comes.
type piped struct {
	child   *child
	sources []*os.File
	pumps   []*pump.Pump
	lines   []*lines
}

// startPiped forks a program with a pipe for each kind of output; with one kind
// it gets all. extra become its descriptors from 3 on. Nothing is told before tell.
func (s *Server) startPiped(p program, kinds int, extra ...*os.File) (*piped, error) {
	run := &piped{}
	null, err := openNull()
	if err != nil {
		return nil, err
	}
	files := []*os.File{null}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for range kinds {
		r, w, err := pump.NewPipe()
		if err != nil {
			closeAll(run.sources...)
			return nil, err
		}
		run.sources = append(run.sources, r)
		files = append(files, os.NewFile(uintptr(w), "pipe"))
	}
	std := files
	if kinds == 1 {
		std = append(files[:2:2], files[1])
	}
	run.child, err = s.fork(p, append(std[:3:3], extra...)...)
	if err != nil {
		closeAll(run.sources...)
		return nil, err
	}
	return run, nil
}

// tell begins to tell the output, of each pipe under its name.
func (p *piped) tell(s *Server, out *stream, kinds ...string) {
	for i, r := range p.sources {
		l := &lines{kind: kinds[i], out: out}
		p.lines = append(p.lines, l)
		p.pumps = append(p.pumps, pump.StartLeaving(r, l.write, s.leftovers.take))
	}
}

// finish tells the rest of the output of a process that has ended. That takes a moment when others still hold it;
// overdue is called when late comes before.
func (p *piped) finish(late <-chan time.Time, overdue func()) {
	p.hurry()
	for _, one := range p.pumps {
		select {
		case <-one.Done():
		case <-late:
			overdue()
		}
	}
	p.drain()
}

// hurry lets the output end soon, whoever still holds it.
func (p *piped) hurry() {
	for _, one := range p.pumps {
		one.Ended()
	}
}

// drain waits for the ends of the output.
func (p *piped) drain() {
	for i, one := range p.pumps {
		<-one.Done()
		p.lines[i].end()
	}
}

// leftovers are pipes that outlived their command because processes that it
// left behind hold them. What these write is dropped.
type leftovers struct {
	mu     sync.Mutex
	open   map[*os.File]struct{}
	closed bool
	wg     sync.WaitGroup
}

// take owns f from here on.
func (l *leftovers) take(f *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = f.Close()
		return
	}
	l.open[f] = struct{}{}
	l.wg.Go(func() {
		defer func() {
			l.mu.Lock()
			delete(l.open, f)
			l.mu.Unlock()
			_ = f.Close()
		}()
		buf := make([]byte, 2<<10)
		for {
			_, err := f.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = f.SetReadDeadline(time.Time{}) // that was for the pump
			}
			if err != nil {
				return
			}
		}
	})
}

// close gives up all of them.
func (l *leftovers) close() {
	l.mu.Lock()
	l.closed = true
	for f := range l.open {
		_ = f.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}
