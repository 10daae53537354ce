package core

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Ledger notes in a file which sandboxes this process has started or taken up, so that others can tell after its death
// what it used. It is an option of Sandbox and not a wrapper around a provider, which would hide the provider's
// capabilities; and the sandbox alone knows when it was handed over or let go.
//
// There is one file per process, of JSON lines that are only ever appended; one that is torn is skipped. When nothing is
// noted any more the file is gone. A ledger that can't be written is worth a warning, but never an error: labels and
// folders tell of the sandboxes as well. It holds no secrets. Safe for concurrent use; a nil one notes nothing.
type Ledger struct {
	mu     sync.Mutex
	path   string
	file   *os.File // nil while nothing is noted
	claims map[claimKey]claim
	lines  int
	torn   bool // the last write may have stopped inside a line
	warned bool
}

// SandboxOption changes how a Sandbox is made.
type SandboxOption func(*Sandbox)

// WithLedger notes the sandbox in a ledger while this process uses it.
func WithLedger(l *Ledger) SandboxOption { return func(s *Sandbox) { s.ledger = l } }

// NewLedger makes this process's ledger. The file is made when there is something to note.
func NewLedger() *Ledger { return &Ledger{claims: map[claimKey]claim{}} }

// The events of a ledger.
const (
	eventProcess = "process"     // the first line: who writes
	eventStarted = "started"     // made by this process
	eventTaken   = "connected"   // taken up by this process
	eventHanded  = "handed_over" // serialized, or let go by a process that had taken it up: others may take it up for a time
	eventEnded   = "ended"
)

// ledgerLine is one line of the file.
type ledgerLine struct {
	Event   string     `json:"event"`
	At      time.Time  `json:"at"`
	Owner   *Owner     `json:"owner,omitempty"`
	Claim   *claim     `json:"sandbox,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
	WaitS   float64    `json:"wait_s,omitempty"` // of handed_over; 0 is for ever
	Keeps   bool       `json:"keeps,omitempty"`  // of handed_over: this process goes on using it
}

type claimKey struct{ provider, id string }

// claim is what a process has noted about one sandbox.
type claim struct {
	Provider string `json:"provider"`
	ID       string `json:"sandbox_id"`
	Location string `json:"location,omitempty"` // the backend's address, without secrets

	first   string // eventStarted or eventTaken
	at      time.Time
	expires time.Time
	held    bool      // this process uses it
	handed  time.Time // when others were invited to take it up; zero: never
	wait    time.Duration
}

func (c claim) key() claimKey { return claimKey{c.Provider, c.ID} }

// over tells whether the claim says nothing any more.
func (c claim) over(now time.Time) bool {
	return !c.held && (c.handed.IsZero() || c.wait > 0 && now.After(c.handed.Add(c.wait)))
}

// lines write the claim down.
func (c claim) lines() []ledgerLine {
	at := ledgerLine{Event: c.first, At: c.at, Claim: &c}
	if !c.expires.IsZero() {
		at.Expires = &c.expires
	}
	all := []ledgerLine{at}
	if !c.handed.IsZero() {
		all = append(all, ledgerLine{Event: eventHanded, At: c.handed, Claim: &c, WaitS: c.wait.Seconds(), Keeps: c.held})
	}
	return all
}

// apply is what a line means for the claims so far.
func (line ledgerLine) apply(claims map[claimKey]claim) {
	if line.Claim == nil {
		return
	}
	k := line.Claim.key()
	c, known := claims[k]
	switch line.Event {
	case eventStarted, eventTaken:
		c = *line.Claim
		c.first, c.at, c.held = line.Event, line.At, true
		if line.Expires != nil {
			c.expires = *line.Expires
		}
	case eventHanded:
		if !known {
			return
		}
		c.handed, c.held = line.At, line.Keeps
		c.wait = time.Duration(line.WaitS * float64(time.Second))
	case eventEnded:
		delete(claims, k)
		return
	default:
		return
	}
	claims[k] = c
}

// claimFor describes a sandbox; ok is false for one that nobody else could find again.
func claimFor(p Provider, id string) (claim, bool) {
	_, ok := p.(Janitor)
	return claim{Provider: p.Name(), ID: id, Location: location(p)}, ok
}

func (l *Ledger) started(p Provider, id string, ttl time.Duration) {
	line := ledgerLine{Event: eventStarted}
	if ttl > 0 {
		expires := time.Now().Add(ttl).UTC()
		line.Expires = &expires
	}
	l.note(p, id, line)
}

func (l *Ledger) connected(p Provider, id string) { l.note(p, id, ledgerLine{Event: eventTaken}) }
func (l *Ledger) ended(p Provider, id string)     { l.note(p, id, ledgerLine{Event: eventEnded}) }

// handedOver notes that others may take the sandbox up from now on; keeps tells whether this process uses it further.
func (l *Ledger) handedOver(p Provider, id string, keeps bool) {
	wait := DefaultHandoverTimeout
	if h, ok := p.(HandoverTimeouter); ok {
		wait = h.HandoverTimeout()
	}
	l.note(p, id, ledgerLine{Event: eventHanded, WaitS: wait.Seconds(), Keeps: keeps})
}

func (l *Ledger) note(p Provider, id string, line ledgerLine) {
	if l == nil {
		return
	}
	c, ok := claimFor(p, id)
	if !ok {
		return
	}
	line.At, line.Claim = time.Now().UTC(), &c
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.claims[c.key()]; !known && (line.Event == eventHanded || line.Event == eventEnded) {
		return
	}
	line.apply(l.claims)
	if err := l.write(line); err != nil && !l.warned {
		l.warned = true
		slog.Warn("can't note in the ledger which sandboxes this process uses; reap finds them by their labels and folders alone", "error", err.Error())
	}
}

// compactAfter is how many lines a ledger has before it is looked through for those that say nothing any more.
const compactAfter = 256

// write brings the file up to date with a line that was applied. mu is held.
func (l *Ledger) write(line ledgerLine) error {
	if l.lines > compactAfter && l.lines > 8*len(l.claims) {
		now := time.Now()
		for k, c := range l.claims {
			if c.over(now) {
				delete(l.claims, k)
			}
		}
		if len(l.claims) > 0 {
			return l.rewrite()
		}
	}
	if len(l.claims) == 0 {
		return l.remove()
	}
	if l.file == nil {
		return l.rewrite()
	}
	raw, err := encodeLines(line)
	if err != nil {
		return err
	}
	if l.torn {
		raw = append([]byte("\n"), raw...)
	}
	l.torn = true
	if _, err := l.file.Write(raw); err != nil {
		return fmt.Errorf("write %s: %w", l.path, err)
	}
	l.torn = false
	l.lines++
	return nil
}

// rewrite makes the file anew from what is noted, so that a reader sees the old or the new one.
func (l *Ledger) rewrite() error {
	dir, err := ledgerDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the ledgers' folder: %w", err)
	}
	path := filepath.Join(dir, ledgerName(Self()))
	file, lines, err := writeLedger(path, Self(), l.claims)
	if err != nil {
		return err
	}
	if l.file != nil {
		_ = l.file.Close()
	}
	l.path, l.file, l.lines, l.torn = path, file, lines, false
	return nil
}

func (l *Ledger) remove() error {
	if l.file == nil {
		return nil
	}
	_ = l.file.Close()
	l.file, l.lines, l.torn = nil, 0, false
	if err := os.Remove(l.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the ledger: %w", err)
	}
	return nil
}

// Close lets go of the file. What is noted in it stays for others. Idempotent.
func (l *Ledger) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}

// unfinished ends the name of a file that is being written.
const unfinished = ".new"

func ledgerDir() (string, error) {
	state, err := StateDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "runs"), nil
}

// ledgerName is the file of a process. A run's name may hold anything, a file's may not.
func ledgerName(o Owner) string {
	run := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, o.Run)
	return fmt.Sprintf("%s-%d-%s.jsonl", run[:min(len(run), 64)], o.PID, o.Start)
}

func encodeLines(lines ...ledgerLine) ([]byte, error) {
	var all []byte
	for _, line := range lines {
		raw, err := json.Marshal(line)
		if err != nil {
			return nil, fmt.Errorf("write the ledger: %w", err)
		}
		all = append(append(all, raw...), '\n')
	}
	return all, nil
}

// writeLedger makes a process's file from its claims and leaves it open for more lines.
func writeLedger(path string, owner Owner, claims map[claimKey]claim) (*os.File, int, error) {
	lines := []ledgerLine{{Event: eventProcess, At: time.Now().UTC(), Owner: &owner}}
	for _, c := range claims {
		lines = append(lines, c.lines()...)
	}
	raw, err := encodeLines(lines...)
	if err != nil {
		return nil, 0, err
	}
	// A name of its own: two may tidy a dead process's file at once.
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*"+unfinished)
	if err != nil {
		return nil, 0, fmt.Errorf("make the ledger: %w", err)
	}
	if _, err = file.Write(raw); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = file.Close()
		_ = os.Remove(file.Name())
		return nil, 0, fmt.Errorf("make the ledger: %w", err)
	}
	return file, len(lines), nil
}
