package tests

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	standin "github.com/nemo-gym/nemo_gym_sandbox/tests/standins/opensandbox"
)

// osbPost makes a request that no provider makes.
func osbPost(t *testing.T, server *standin.Server, path, body string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodPost, server.URL+"/v1"+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("OPEN-SANDBOX-API-KEY", standin.Key)
	res, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	_ = res.Body.Close()
	require.Equal(t, http.StatusAccepted, res.StatusCode)
}

// All pages of both lists are read, and each thing is told with its run and user.
func TestOpenSandboxListsWhatOthersMade(t *testing.T) {
	server := startStandin(t)
	const mine = `{"image":{"uri":"i"},"entrypoint":["x"],"timeout":600,"resourceLimits":{},"metadata":{"nemo-gym.nvidia.com/run":"r_1","nemo-gym.nvidia.com/user":"ann"}}`
	for range 105 {
		osbPost(t, server, "/sandboxes", mine)
	}
	osbPost(t, server, "/sandboxes", strings.ReplaceAll(mine, "r_1", "other"))
	boxes := server.Sandboxes()
	osbPost(t, server, "/sandboxes/"+boxes[0]+"/snapshots", "")
	p := newOpenSandbox(t, server, nil)
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	found, err := core.Survey(ctx, p)
	require.NoError(t, err)
	require.Len(t, found, 107)
	runs := map[string]int{}
	for _, f := range found {
		runs[f.Owner.Run]++
		assert.Equal(t, "ann", f.User)
		assert.Equal(t, strings.HasPrefix(f.ID, "snapshot/"), f.Leftover)
		assert.False(t, f.Created.IsZero())
	}
	assert.Equal(t, map[string]int{"r_1": 106, "other": 1}, runs)
	n := slices.IndexFunc(found, func(f core.Found) bool { return f.Leftover })
	require.NoError(t, core.Reap(ctx, p, found[n].ID))
	require.NoError(t, core.Reap(ctx, p, found[n].ID), "it is gone")
	require.NoError(t, core.Reap(ctx, p, boxes[0]))
	require.NoError(t, core.Reap(ctx, p, boxes[0]))
	assert.Empty(t, server.Snapshots())
	assert.Len(t, server.Sandboxes(), 105)
}

func TestOpenSandboxListThatIsNoneIsAnError(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
	}{
		{200, `[]`}, {200, `{}`}, {200, `{"items":[]}`}, {200, `{"items":[],"pagination":{}}`}, {200, `{"items":[],"pagination":{"hasNextPage":"no"}}`},
		{200, `{"items":{},"pagination":{"hasNextPage":false}}`}, {200, `{"items":[3],"pagination":{"hasNextPage":false}}`},
		{200, `{"items":[{"metadata":{}}],"pagination":{"hasNextPage":false}}`}, {200, `{"items":[{"id":"x","metadata":[]}],"pagination":{"hasNextPage":false}}`},
		{307, ``}, {401, `{"code":"INVALID_API_KEY","message":"no"}`}, {200, `<html>`},
	} {
		server := startStandin(t)
		server.Fail(standin.Fault{Method: http.MethodGet, Path: "/v1/sandboxes", Status: c.status, Body: c.body, Times: 9})
		_, err := core.Survey(context.Background(), newOpenSandbox(t, server, nil))
		assert.Error(t, err, c.body)
		assert.NotContains(t, err.Error(), standin.Key)
	}
}

// The status says only that the sandbox has failed; why is in the diagnostics.
func TestOpenSandboxFindsOutThatMemoryWasShort(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	server.SetStatus(s.ID(), "Failed", "CONTAINER_EXITED_ERROR", "Sandbox container exited with code 137.")
	server.SetEvents(s.ID(), "Event: OOMKilled - container was killed due to out-of-memory")
	res, _, _ := osbRun(t, s, core.ExecRequest{Command: "true"})
	assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
	assert.Contains(t, res.Reason, "Sandbox was OOM-killed")
	assert.Contains(t, res.Reason, "exited with code 137")
}
