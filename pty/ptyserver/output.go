package ptyserver

import (
	"time"

	"github.com/gorilla/websocket"

	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// maxSpans bounds how often stdout and stderr may alternate in what the holder has not been sent.
const maxSpans = 4096

// window is how much output of a terminal may be on its way to whoever sits in
// front of it. All of that is still shown after an interrupt; a screen takes some MiB/s.
const window = 128 << 10

const (
	// batch is how much of a flood is sent at once, if it comes within the pause: each message wakes
	// several threads, and the kernel gives a terminal's output in pieces of 4 KiB.
	batch = 16 << 10
	pause = time.Millisecond
	// flooding is a piece that only a program makes that prints on and on.
	flooding = 2 << 10
	// telling is how long a holder waits to hear that its input was taken, unless that is much: hearing it of every key
	// would cost as much as its echo.
	telling = 50 * time.Millisecond
)

// span tells where in the output one stream's turn ends. Only what the holder
// has not been sent is described, and only without a terminal.
type span struct {
	channel byte
	end     int64
}

// produce takes output of the process. It waits as long as a holder has not got
// enough of what came before.
func (s *session) produce(channel byte, p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for (s.holder != nil || s.claim != nil) && !s.fits(channel, int64(len(p))) {
		if s.gone {
			return // what is printed while the session is being ended may get lost
		}
		s.waiting++
		s.changed.Wait()
		s.waiting--
	}
	s.ring.write(p)
	if s.sendNow(channel, p) {
		return
	}
	if s.holder != nil && !s.spec.Terminal {
		if n := len(s.spans); n > 0 && s.spans[n-1].channel == channel {
			s.spans[n-1].end = s.ring.total
		} else {
			s.spans = append(s.spans, span{channel, s.ring.total})
		}
	}
	s.news.Broadcast()
}

// sendNow sends the holder what has just been produced, without waiting and without waking its sender, when that has
// nothing to do and this is no flood. mu is held.
func (s *session) sendNow(channel byte, p []byte) bool {
	h := s.holder
	if h == nil || !h.resting || h.flood || len(p) >= flooding || s.sent+int64(len(p)) != s.ring.total || !h.quick.Claim(h.writing) {
		return false
	}
	_ = h.quick.SendClaimed(h.writing, channel, p, h.times.stall, h.broke) // which drops it
	s.sent = s.ring.total
	h.sentAt = time.Now()
	if s.waiting > 0 {
		s.changed.Broadcast()
	}
	return true
}

// fits tells whether n bytes can be added and the ring still keeps everything
// that the holder may not have got. Of one that does not say what it got, half of
// the ring has to be enough for what is lost with a connection. With a terminal the
// holder moreover is not left far behind.
func (s *session) fits(channel byte, n int64) bool {
	if len(s.spans) >= maxSpans && s.spans[len(s.spans)-1].channel != channel {
		return false
	}
	ahead, times := s.ring.total-s.sent+n, int64(2)
	if s.flow {
		ahead, times = s.ring.total-s.got+n, 1
	}
	if s.holder != nil && s.spec.Terminal && ahead > window {
		return false
	}
	return times*ahead <= s.ring.reserve(times*ahead)
}

// next gives the message that h is to be sent next. Output is copied into buf,
// behind the byte that names its channel. It waits for something to send; done means that there
// will be nothing any more.
func (s *session) next(h *holder, buf []byte) (kind int, p []byte, done bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.holder == h && !s.worthSending(h) && s.state != ended && !s.owesTaken(h) {
		h.resting = true
		s.news.Wait()
		h.resting = false
	}
	switch {
	case s.holder != h:
		return 0, nil, true
	case s.owesTaken(h):
		h.toldTaken, h.due = s.taken, false
		return websocket.TextMessage, proto.Control{Type: proto.TypeTaken, Offset: s.taken}.Line(), false
	case s.sent == s.ring.total:
		return 0, nil, true
	}
	channel, end := proto.Stdout, s.ring.total
	if len(s.spans) > 0 {
		channel, end = s.spans[0].channel, s.spans[0].end
	}
	buf[0] = channel
	n := s.ring.copyAt(s.sent, buf[1:1+min(end-s.sent, int64(len(buf)-1))])
	return websocket.BinaryMessage, buf[:1+n], false
}

// worthSending tells whether there is output for h, and enough of it in a flood. mu is held.
func (s *session) worthSending(h *holder) bool {
	n := s.ring.total - s.sent
	if n == 0 || n >= batch || !h.flood {
		return n > 0
	}
	left := time.Until(h.sentAt.Add(pause))
	if left > 0 {
		h.alarm.Reset(left)
	}
	return left <= 0
}

// owesTaken tells whether h has to hear that the process was given input. mu is held.
func (s *session) owesTaken(h *holder) bool {
	news := s.taken - h.toldTaken
	return h.flow && news > 0 && s.state != ended && (s.inputSize == 0 && h.due || news >= proto.MaxInput/4)
}

// hasTaken notes that the process was given n bytes of input. mu is held.
func (s *session) hasTaken(n int) {
	s.taken += int64(n)
	s.changed.Broadcast()
	h := s.holder
	if h == nil || !h.flow {
		return
	}
	if s.owesTaken(h) {
		s.news.Broadcast()
		return
	}
	if s.inputSize == 0 && !h.telling {
		h.telling = true
		h.teller.Reset(telling)
	}
}

// tell has h told of the input that was taken by now.
func (s *session) tell(h *holder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.telling, h.due = false, true
	s.news.Broadcast()
}

// hasSent notes that h has been sent n bytes of output.
func (s *session) hasSent(h *holder, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != h {
		return
	}
	s.sent += int64(n)
	h.flood, h.sentAt = n >= flooding, time.Now()
	for len(s.spans) > 0 && s.spans[0].end <= s.sent {
		s.spans = s.spans[1:]
	}
	s.changed.Broadcast()
}

// hasGot notes up to where output has arrived at h.
func (s *session) hasGot(h *holder, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder == h && offset > s.got {
		s.got = min(offset, s.ring.total)
		s.changed.Broadcast()
	}
}

// stuck is asked at every tick. It tells when the process has waited for h for so
// many of them while nothing went on there.
func (s *session) stuck(h *holder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != h || s.waiting == 0 || s.sent+s.got != h.progress {
		h.progress, h.idle = s.sent+s.got, 0
		return false
	}
	if !s.srv.still.Load() {
		h.idle++
	}
	return h.idle >= claimTicks
}

// hello waits until the process runs or has failed to, and gives h's greeting.
func (s *session) hello(h *holder) (proto.Control, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.state < running {
		s.changed.Wait()
	}
	c := proto.Control{Type: proto.TypeConnected, SessionID: s.id, Mode: proto.Mode(s.spec.Terminal)}
	if h.flow {
		h.toldTaken = s.taken
		c.Flow, c.Accepted, c.Taken = true, s.accepted, s.taken
	}
	return c, s.failure
}
