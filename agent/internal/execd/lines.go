package execd

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
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
	buf  []byte // for events
}

// write takes what has come.
func (l *lines) write(p []byte) error {
	now := strconv.AppendInt(nil, time.Now().UnixMilli(), 10)
	all := l.buf[:0]
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
		all = l.append(all, line, now)
		l.rest = l.rest[:0]
		p = p[n+1:]
	}
	for len(l.rest) > maxLine {
		n := maxLine
		for k := 1; k < utf8.UTFMax && !utf8.RuneStart(l.rest[n]); k++ {
			n-- // a character is not cut
		}
		all = l.append(all, l.rest[:n], now)
		l.rest = append([]byte(nil), l.rest[n:]...)
	}
	l.out.raw(all)
	l.buf = reusable(all)
	if len(l.rest) == 0 {
		l.rest = reusable(l.rest)
	}
	return nil
}

// reusable keeps a buffer unless it has become large.
func reusable(p []byte) []byte {
	if cap(p) > 256<<10 {
		return nil
	}
	return p
}

// end tells a last line that has no end.
func (l *lines) end() {
	if len(l.rest) > 0 {
		l.out.raw(l.append(nil, l.rest, strconv.AppendInt(nil, time.Now().UnixMilli(), 10)))
		l.rest = nil
	}
}

// append adds the event of one line, which is written here and not by reflection: outputs have many lines.
func (l *lines) append(dst, line, now []byte) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, l.kind...)
	dst = append(dst, `","text":`...)
	switch {
	case len(line) == 0:
		dst = append(dst, `"\n"`...)
	case plain(line):
		dst = append(append(append(dst, '"'), line...), '"')
	default:
		// Bytes that are no text become U+FFFD.
		p, err := json.Marshal(string(line))
		if err != nil {
			p = []byte(`""`) // strings always marshal
		}
		dst = append(dst, p...)
	}
	dst = append(dst, `,"timestamp":`...)
	dst = append(dst, now...)
	return append(dst, "}\n\n"...)
}

// plain tells whether a text is the same in JSON.
func plain(p []byte) bool {
	for _, c := range p {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
