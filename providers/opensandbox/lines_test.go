package opensandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// plainEvents are events, and whether they are read without a JSON reader.
var plainEvents = map[string]bool{
	`{"type":"stdout","text":"a line","timestamp":1796004873034}`:    true,
	`{"type":"stderr","text":"☕ 'x' <y>","timestamp":1}`:             true,
	`{"type":"stdout","text":"","timestamp":0}`:                      true,
	`{"type":"stdout","text":"a"}`:                                   true,
	`{"text":"a","type":"stdout","timestamp":1}`:                     true,
	`{"type":"stdout","text":"a","timestamp":1,"text":"b"}`:          true,
	`{"type":"init","text":"0123","timestamp":1}`:                    true,
	`{"type":"execution_complete","execution_time":3,"timestamp":1}`: true,
	`{"type":"stdout","text":"a\"b","timestamp":1}`:                  false,
	`{"type":"stdout","text":"\n","timestamp":1}`:                    false,
	"{\"type\":\"stdout\",\"text\":\"a\tb\"}":                        false,
	`{"type":"stdout","text":"` + "\xff" + `","timestamp":1}`:        false,
	`{"type":"stdout","text":"a","timestamp":1`:                      false,
	`{"type":"stdout","text":"a","timestamp":1}}`:                    false,
	`{"type":"stdout","text":"a","timestamp":1,}`:                    false,
	`{"type":"stdout","text":"a","timestamp":}`:                      false,
	`{"type":"stdout","text":"a","timestamp":01}`:                    false,
	`{"type":"stdout","text":"a","timestamp":1.5}`:                   false,
	`{"type":"stdout","text":1}`:                                     false,
	`{"type":"stdout","text":"a"`:                                    false,
	`{"type":"stdout","text":"a`:                                     false,
	`{"type" :"stdout"}`:                                             false,
	`{"Type":"stdout","text":"a"}`:                                   false,
	`{"type":"","text":"a"}`:                                         false,
	`{"text":"a"}`:                                                   false,
	`{}`:                                                             false,
	`{`:                                                              false,
	``:                                                               false,
	`{"type":"error","timestamp":1,"error":{"ename":"CommandExecError","evalue":"3"}}`: false,
	`{"code":"RUNTIME_ERROR","message":"x"}`:                                           false,
}

// What is read without a JSON reader is what one would have read.
func TestPlainEventsAreReadAsJSON(t *testing.T) {
	for text, plain := range plainEvents {
		_, ok := plainEvent([]byte(text))
		assert.Equal(t, plain, ok, text)
		sameAsJSON(t, []byte(text))
	}
}

func FuzzPlainEventsAreReadAsJSON(f *testing.F) {
	for text := range plainEvents {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) { sameAsJSON(t, text) })
}

func sameAsJSON(t *testing.T, text []byte) {
	got, ok := plainEvent(text)
	if !ok {
		return
	}
	var want event
	require.NoError(t, json.Unmarshal(text, &want), "%s", text)
	assert.Equal(t, want, got, "%s", text)
}

// taken notes what a receiver got, and may refuse more.
type taken struct {
	writes []string
	full   bool
}

func (k *taken) Write(s core.Stream, p []byte) error {
	k.writes = append(k.writes, fmt.Sprintf("%d %s", s, p))
	if k.full {
		return errors.New("full")
	}
	return nil
}

func TestLinesArePutTogether(t *testing.T) {
	k := &taken{}
	l := &lines{sink: k}
	for _, text := range []string{"one", "\n", "three"} {
		l.write(core.Stdout, text)
	}
	assert.Empty(t, k.writes)
	l.write(core.Stderr, "other")
	l.write(core.Stdout, "four")
	l.flush()
	l.flush()
	assert.Equal(t, []string{"0 one\n\nthree", "1 other", "0 \nfour"}, k.writes)
	long := strings.Repeat("x", maxHeld)
	l.write(core.Stdout, long)
	l.write(core.Stdout, long)
	assert.Equal(t, "0 \n"+long, k.writes[3])
}

func TestReceiverThatWantsNoMoreOfOneStreamGetsTheOther(t *testing.T) {
	k := &taken{full: true}
	l := &lines{sink: k}
	for range 2 {
		l.write(core.Stdout, "out")
		l.write(core.Stderr, "err")
		l.flush()
	}
	assert.Equal(t, []string{"0 out", "1 err"}, k.writes)
}

func TestOnlyWholeEventsAreWaiting(t *testing.T) {
	for stream, want := range map[string]bool{
		"{}\n\n{}\n\n": true, "{}\n\n": false, "{}\n\n{": false, "{}\n\n\n\r\n": false, "{}\r\n\r\n{}\r\n": true,
	} {
		e := newEvents(strings.NewReader(stream))
		_, err := e.next()
		require.NoError(t, err)
		assert.Equal(t, want, e.waiting(), "%q", stream)
		e.letGo()
	}
}
