package proto

import "time"

// Patience gives the other end of a connection time for its next message. It is whoever reads who uses it.
type Patience struct {
	Conn interface{ SetReadDeadline(t time.Time) error }
	// Silence is how long nothing may come.
	Silence time.Duration

	extended time.Time
}

// Extend begins that time anew. It moves a timer, which is not worth it for every key: the time may have begun up to a
// 64th of it before.
func (p *Patience) Extend() error {
	now := time.Now()
	if now.Sub(p.extended) < p.Silence/64 {
		return nil
	}
	p.extended = now
	return p.Conn.SetReadDeadline(now.Add(p.Silence))
}
