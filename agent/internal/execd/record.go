package execd

import (
	"os"
	"slices"
	"sync"
	"time"
)

// command is one that was asked for.
type command struct {
	id         string
	text       string
	background bool
	began      time.Time
	log        *os.File // of a background command

	mu       sync.Mutex
	child    *child // nil until it runs
	failure  error  // why it could not be started
	finished time.Time
}

const (
	// What is kept of commands that have ended, so that their clients can ask for them: so many records, so many bytes
	// of command text and of logs, for so long.
	keepRecords = 4096
	keepText    = 32 << 20
	keepLogs    = 1 << 30
	keepFor     = time.Hour
	// young is how long a record is kept although there are too many: clients poll every half minute. There is an end
	// to that too, since each log takes a descriptor.
	young      = time.Minute
	mostYoung  = 4 * keepRecords
	pruneEvery = 256 // commands, so that not each one looks at all
)

// commands are those that were asked for.
type commands struct {
	mu    sync.Mutex
	byID  map[string]*command
	order []*command // oldest first
	added int        // since the last pruning
}

// add records a command. Old ones make room.
func (cs *commands) add(c *command) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.byID[c.id] = c
	cs.order = append(cs.order, c)
	if cs.added++; cs.added >= pruneEvery {
		cs.added = 0
		cs.prune()
	}
}

// prune forgets the oldest commands that have ended and are too many, too large or too old. mu is held.
func (cs *commands) prune() {
	var records int
	var text, logs int64
	for _, c := range slices.Backward(cs.order) {
		records++
		text += int64(len(c.text))
		logs += c.logSize()
		over, since := c.ended()
		many := records > keepRecords || text > keepText || logs > keepLogs
		if over && (since > keepFor || many && since > young || records > mostYoung) {
			delete(cs.byID, c.id)
			c.forget()
		}
	}
	cs.order = slices.DeleteFunc(cs.order, func(c *command) bool { return cs.byID[c.id] == nil })
}

func (cs *commands) find(id string) *command {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.byID[id]
}

// forget closes all logs.
func (cs *commands) forget() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.order {
		c.forget()
	}
	cs.byID, cs.order = map[string]*command{}, nil
}

// started records what became of the attempt to start it.
func (c *command) started(ch *child, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.child, c.failure = ch, err
	if err != nil {
		c.finished = time.Now()
	}
}

// ran records its end.
func (c *command) ran() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finished = time.Now()
}

// ended tells whether it is over, and for how long.
func (c *command) ended() (bool, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.finished.IsZero(), time.Since(c.finished)
}

// logSize is how much its log takes.
func (c *command) logSize() int64 {
	if c.log == nil {
		return 0
	}
	st, err := c.log.Stat()
	if err != nil {
		return 0
	}
	return st.Size()
}

// forget closes the log, whose file has no name.
func (c *command) forget() {
	if c.log != nil {
		_ = c.log.Close()
	}
}
