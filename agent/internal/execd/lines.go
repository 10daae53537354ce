package execd

import (
	"bytes"
	"unicode/utf8"
)

// maxLine bounds a line that does not end; a longer one is told in parts.
const maxLine = 8 << 20

// lines makes events of a stream's bytes: one for each line, without what ends it.
type lines struct {
	kind string // "stdout" or "stderr"
	out  *stream
	rest []byte // of a line that has not ended
	cr   bool   // the last byte was \r: a \n belongs to it
}

// write takes what has come.
func (l *lines) write(p []byte) error {
	var all []event
	for len(p) > 0 {
		if l.cr {
			l.cr = false
			if p[0] == '\n' {
				p = p[1:]
				continue
			}
		}
		n := bytes.IndexAny(p, "\r\n")
		if n < 0 {
			l.rest = append(l.rest, p...)
			break
		}
		l.cr = p[n] == '\r'
		line := p[:n]
		if len(l.rest) > 0 {
			l.rest = append(l.rest, line...)
			line = l.rest
		}
		all = append(all, l.event(line))
		l.rest = l.rest[:0]
		p = p[n+1:]
	}
	for len(l.rest) > maxLine {
		n := maxLine
		for k := 1; k < utf8.UTFMax && !utf8.RuneStart(l.rest[n]); k++ {
			n-- // a character is not cut
		}
		all = append(all, l.event(l.rest[:n]))
		l.rest = append([]byte(nil), l.rest[n:]...)
	}
	if len(all) > 0 {
		l.out.send(all...)
	}
	if len(l.rest) == 0 && cap(l.rest) > 64<<10 {
		l.rest = nil
	}
	return nil
}

// end tells a last line that has no end.
func (l *lines) end() {
	if len(l.rest) > 0 {
		l.out.send(l.event(l.rest))
		l.rest = nil
	}
}

// event is that of one line. Bytes that are no text become U+FFFD when it is written.
func (l *lines) event(line []byte) event {
	if len(line) == 0 {
		return event{Type: l.kind, Text: "\n"}
	}
	return event{Type: l.kind, Text: string(line)}
}
