package pty

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// maxLine is the longest line that is typed as it is. Terminals in line mode keep
	// 4,096 bytes of a line and drop the rest, busybox's line editor keeps 1,023.
	maxLine = 1000
	// pieceLen is how much of a command one assembling line carries.
	pieceLen = 800
	// variable holds a command that is put together in the shell.
	variable = "_ngs_command"
)

// markers surround the output of one command. They are printed from two quoted
// halves, so that the shell's echo of what was typed never contains them.
type markers struct{ first, second string }

// newMarkers makes markers that nothing else prints.
func newMarkers() markers {
	var b [12]byte
	// Never fails: the runtime ends the program without randomness.
	_, _ = rand.Read(b[:])
	return markers{"NGS" + hex.EncodeToString(b[:6]), hex.EncodeToString(b[6:])}
}

// start stands at the end of the line before the output.
func (m markers) start() []byte { return []byte(m.first + m.second + "S") }

// end stands between the output and the status.
func (m markers) end() []byte { return []byte(m.first + m.second + ":") }

// typed is what to write to a shell for one command: a brace group of the start
// marker, the command, and the end marker with its status.
//
// A command that a terminal would not take as it is, because of a long line, a
// control character or one that is not ASCII, is put together in the shell from
// printable pieces.
func typed(command string, m markers) ([]byte, error) {
	if strings.Contains(command, "\x00") {
		return nil, core.Errorf(core.KindInvalid, "pty exec", "a command cannot contain a NUL character")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{ printf '%%s%%s\\n' '%s' '%sS'\n", m.first, m.second)
	if plain(command) {
		b.WriteString(command + "\n")
	} else {
		assemble(&b, command)
	}
	fmt.Fprintf(&b, "printf '%%s%%s:%%s\\n' '%s' '%s' \"$?\"\n} </dev/null\n", m.first, m.second)
	return b.Bytes(), nil
}

// plain tells whether a command can be typed as it is.
func plain(command string) bool {
	// Shells take "!" as a reference to their history, and a last backslash would swallow the status line.
	if strings.Contains(command, "!") || strings.HasSuffix(command, "\\") {
		return false
	}
	for line := range strings.SplitSeq(command, "\n") {
		if len(line) >= maxLine || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r > '~' }) {
			return false
		}
	}
	return true
}

// assemble writes lines that put a command together and run it.
func assemble(b *bytes.Buffer, command string) {
	// Two newlines: after one that a backslash swallows, bash would go on with the next line that is typed.
	text := "unset " + variable + " " + variable + "_\n" + command + "\n\n"
	b.WriteString(variable + "=\n")
	var piece strings.Builder
	for i := range len(text) {
		if c := text[i]; c >= ' ' && c <= '~' && c != '\'' && c != '\\' {
			piece.WriteByte(c)
		} else {
			fmt.Fprintf(&piece, "\\0%03o", c)
		}
		if piece.Len() >= pieceLen || i == len(text)-1 {
			// The dot keeps the newlines at a piece's end, which a substitution would drop.
			fmt.Fprintf(b, "%[1]s_=$(printf '%%b.' '%[2]s'); %[1]s=$%[1]s${%[1]s_%%.}\n", variable, piece.String())
			piece.Reset()
		}
	}
	fmt.Fprintf(b, "eval \"$%s\"\n", variable)
}

// marked takes a session's output in any pieces and finds the part that belongs to one command.
type marked struct {
	start, end []byte
	typedFirst []byte // what the shell's echo has of both
	typedStart []byte // and of the start alone
	text       []byte
	searched   int  // there is no marker before
	begun      bool // text begins with the output
	statusAt   int  // where the status begins, -1 before; until begun it is of an end marker that no start came before
}

func newMarked(m markers) *marked {
	return &marked{start: m.start(), end: m.end(), typedFirst: []byte(m.first), typedStart: []byte(m.second + "S'"), statusAt: -1}
}

// feed adds a piece.
func (o *marked) feed(p []byte) {
	o.text = append(o.text, p...)
	if !o.begun {
		if alone := bytes.Index(o.text[o.searched:], o.end); alone >= 0 && o.statusAt < 0 {
			o.statusAt = o.searched + alone + len(o.end)
		}
		at := o.find(o.start) // as long as the other one
		if at < 0 {
			return
		}
		newline := bytes.IndexByte(o.text[at:], '\n')
		if newline < 0 {
			o.searched = at
			return
		}
		// Echo and prompts.
		o.text = append(o.text[:0], o.text[at+newline+1:]...)
		o.begun, o.searched, o.statusAt = true, 0, -1
	}
	if o.statusAt < 0 {
		if at := o.find(o.end); at >= 0 {
			o.statusAt = at + len(o.end)
		}
	}
}

// find looks for a marker behind what was searched before; it may be split over pieces.
func (o *marked) find(marker []byte) int {
	if at := bytes.Index(o.text[o.searched:], marker); at >= 0 {
		return o.searched + at
	}
	o.searched = max(o.searched, len(o.text)-len(marker)+1)
	return -1
}

// digits is how many there are of the status, and whether anything follows them.
func (o *marked) digits() (n int, more bool) {
	rest := o.text[o.statusAt:]
	for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	return n, n < len(rest)
}

// complete: the whole line with the status was seen.
func (o *marked) complete() bool {
	if !o.begun || o.statusAt < 0 {
		return false
	}
	_, more := o.digits()
	return more
}

// hasStatus: at least a part of the status was seen, or of one that no start came before: it counts when nothing follows.
//
// A shell that finds a mistake in a group drops what it has read of it and goes on with the next line. So the end marker
// comes, with the status of the mistake, and the start marker never does.
func (o *marked) hasStatus() bool { return o.statusAt >= 0 && len(o.text) > o.statusAt }

// output is what the command printed so far.
func (o *marked) output() []byte {
	switch {
	case !o.begun && o.statusAt >= 0:
		return o.saidOfMistake(o.text[:o.statusAt-len(o.end)])
	case !o.begun:
		return nil
	case o.statusAt >= 0:
		return o.text[:o.statusAt-len(o.end)]
	default:
		return o.text
	}
}

// saidOfMistake is among echo and prompts, of which only the markers' own lines can be told apart.
func (o *marked) saidOfMistake(text []byte) (said []byte) {
	for len(text) > 0 {
		n := bytes.IndexAny(text, "\r\n") + 1
		if n == 0 {
			n = len(text)
		} else if bytes.HasPrefix(text[n-1:], []byte("\r\n")) {
			n++
		}
		switch line := text[:n]; {
		case !bytes.Contains(line, o.typedFirst):
			said = append(said, line...)
		case bytes.Contains(line, o.typedStart):
			said = said[:0] // what comes before is older than the command
		}
		text = text[n:]
	}
	return said
}

// status is the exit status; false when what was printed in its place is not one.
func (o *marked) status() (int, bool) {
	if o.statusAt < 0 {
		return 0, false
	}
	n, more := o.digits()
	if more {
		if c := o.text[o.statusAt+n]; c != '\r' && c != '\n' {
			return 0, false
		}
	}
	code, err := strconv.Atoi(string(o.text[o.statusAt : o.statusAt+n]))
	return code, err == nil
}
