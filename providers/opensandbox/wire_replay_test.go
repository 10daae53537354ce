package opensandbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// All that was recorded of a real server, its daemon and another client of both is replayed: a line that nothing replays fails the test.
func TestEveryRecordedLineIsReplayed(t *testing.T) {
	ledger := readWire(t)
	for name, replay := range map[string]func(*testing.T, *wireLedger){
		"creates": replayCreates, "exchanges": replayExchanges, "sockets": replaySockets, "readiness": replayReadiness, "errors": replayServerErrors,
		"tails": replayTailLoss, "elsewhere": replayedElsewhere,
	} {
		t.Run(name, func(t *testing.T) { replay(t, ledger) })
	}
	assert.Empty(t, ledger.missing())
}
