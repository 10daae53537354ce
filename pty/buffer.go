package pty

import "github.com/nemo-gym/nemo_gym_sandbox/core"

// event wakes everybody who waits for something to change. The owner's lock guards it.
type event struct{ ch chan struct{} }

// wait gives what is closed at the next change.
func (e *event) wait() <-chan struct{} {
	if e.ch == nil {
		e.ch = make(chan struct{})
	}
	return e.ch
}

func (e *event) fire() {
	if e.ch != nil {
		close(e.ch)
		e.ch = nil
	}
}

// buffer is received output that nobody has read, with the gaps in it.
type buffer struct {
	pieces []piece
	size   int
}

// piece is output, or a place where some is missing.
type piece struct {
	data []byte
	gap  *core.PTYGap
}

// maxPiece is how much small output is put together for one read.
const maxPiece = 32 << 10

func (b *buffer) add(p []byte) {
	b.size += len(p)
	if n := len(b.pieces); n > 0 && b.pieces[n-1].gap == nil && len(b.pieces[n-1].data)+len(p) <= maxPiece {
		b.pieces[n-1].data = append(b.pieces[n-1].data, p...)
		return
	}
	b.pieces = append(b.pieces, piece{data: append([]byte(nil), p...)})
}

func (b *buffer) empty() bool { return len(b.pieces) == 0 }

func (b *buffer) addGap(g *core.PTYGap) { b.pieces = append(b.pieces, piece{gap: g}) }

// take gives the oldest piece; false when there is none.
func (b *buffer) take() (piece, bool) {
	if b.empty() {
		return piece{}, false
	}
	p := b.pieces[0]
	b.pieces[0] = piece{}
	b.pieces = b.pieces[1:]
	b.size -= len(p.data)
	return p, true
}
