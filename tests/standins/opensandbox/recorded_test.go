package opensandbox

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// told is what a stream says, without what differs from run to run: one list of texts to a stream, and the end.
type told struct {
	Stdout, Stderr []string
	End            []string
}

func readTold(t *testing.T, body string) told {
	t.Helper()
	var all told
	for dec := json.NewDecoder(strings.NewReader(body)); ; {
		var e struct {
			Type, Text string
			Error      struct {
				EName, EValue string
				Traceback     []string
			}
		}
		err := dec.Decode(&e)
		if err == io.EOF {
			return all
		}
		require.NoError(t, err, body)
		switch e.Type {
		case "stdout":
			all.Stdout = append(all.Stdout, e.Text)
		case "stderr":
			all.Stderr = append(all.Stderr, e.Text)
		case "error":
			all.End = append(all.End, e.Type, e.Error.EName, e.Error.EValue, strings.Join(e.Error.Traceback, "|"))
		case "execution_complete":
			all.End = append(all.End, e.Type)
		}
	}
}

// The stand-in is only of use as far as it answers what a real daemon was recorded to answer.
func TestCommandsAreToldAsByARealDaemon(t *testing.T) {
	s, err := Start()
	require.NoError(t, err)
	t.Cleanup(s.Close)
	b, err := s.newBox("", nil, nil, 0)
	require.NoError(t, err)
	f, err := os.Open("../../../providers/opensandbox/testdata/streams.jsonl")
	require.NoError(t, err)
	defer func() { _ = f.Close() }()
	// Left out is what tells of the machine that was recorded, or takes long.
	wanted := map[string]bool{}
	for _, n := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15} {
		wanted[fmt.Sprintf("command_fg/%d", n)] = true
	}
	for _, n := range []int{5, 6, 12, 13, 16, 17, 19} {
		wanted[fmt.Sprintf("command_opts/%d", n)] = true
	}
	seen := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r struct {
			Case    string
			Seq     int
			Request json.RawMessage
			Status  int
			Chunks  []string
		}
		require.NoError(t, json.Unmarshal(lines.Bytes(), &r))
		name := fmt.Sprintf("%s/%d", r.Case, r.Seq)
		if !wanted[name] {
			continue
		}
		seen++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := http.Post(s.direct.URL+"/box/"+b.id+"/command", "application/json", strings.NewReader(string(r.Request)))
			require.NoError(t, err)
			defer func() { _ = res.Body.Close() }()
			p, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.Equal(t, r.Status, res.StatusCode, string(p))
			recorded := strings.Join(r.Chunks, "")
			if r.Status != http.StatusOK {
				var got, want struct{ Code string }
				require.NoError(t, json.Unmarshal(p, &got))
				require.NoError(t, json.Unmarshal([]byte(recorded), &want))
				assert.Equal(t, want, got)
				return
			}
			assert.Equal(t, readTold(t, recorded), readTold(t, string(p)))
		})
	}
	assert.Equal(t, len(wanted), seen)
}
