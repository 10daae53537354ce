package tests

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	standin "github.com/nemo-gym/nemo_gym_sandbox/tests/standins/opensandbox"
)

// What other clients of these servers are known to do wrong, and ours has to do right. Faults that are as much those of a
// protocol, or of one of its parts, have their tests there.

// drained reads a session to its end.
func osbDrained(ctx context.Context, t *testing.T, session core.PTYSession) (string, int) {
	t.Helper()
	var got []byte
	for {
		p, err := session.Read(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err, "after %q", got)
		got = append(got, p...)
	}
	code, err := session.WaitExit(ctx)
	require.NoError(t, err)
	return string(got), code
}

func osbContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	t.Cleanup(cancel)
	return ctx
}

// Daemons hold a command's stream for a second after its result.
func TestOpenSandboxCommandDoesNotWaitForTheEndOfItsStream(t *testing.T) {
	s := osbBox(t, startStandin(t), nil, core.Spec{})
	fastest := time.Hour
	for range 5 {
		begun := time.Now()
		res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "echo x"})
		fastest = min(fastest, time.Since(begun))
		assert.Equal(t, core.ExecResult{}, res)
		assert.Equal(t, "x", stdout)
	}
	assert.Less(t, fastest, 900*time.Millisecond, "the stream stays open for a second")
}

// Nothing in a domain says how it is spoken to.
func TestOpenSandboxTerminalsNeedNoProtocolInTheConfiguration(t *testing.T) {
	server := startStandin(t)
	bare := strings.TrimPrefix(server.URL, "http://")
	require.NotContains(t, bare, "://")
	s := osbBox(t, server, settings{"connection": settings{"domain": bare, "protocol": nil}}, core.Spec{})
	ctx := osbContext(t)
	session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "echo here"})
	require.NoError(t, err)
	out, _ := osbDrained(ctx, t, session)
	assert.Equal(t, "here", strings.TrimSpace(out))
	require.NoError(t, session.Close(ctx))
}

// Daemons tell a timeout and a kill by the same code.
func TestOpenSandboxKilledCommandIsNoTimeoutAndTheOtherWayRound(t *testing.T) {
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := osbBox(t, startStandin(t), blocks, core.Spec{})
			res, _, _ := osbRun(t, s, core.ExecRequest{Command: "kill -9 $$", Timeout: time.Minute})
			assert.NotEqual(t, core.ErrorTypeTimeout, res.ErrorType, res.Reason)
			assert.NotZero(t, res.ExitCode)
			res, _, _ = osbRun(t, s, core.ExecRequest{Command: "sleep 60", Timeout: 200 * time.Millisecond})
			assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType, res.Reason)
			assert.Equal(t, core.NoExitCode, res.ExitCode)
		})
	}
}

// Daemons answer the first questions about a command with 404: it is not registered yet.
func TestOpenSandboxCommandThatIsNotRegisteredYetIsAskedForAgain(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, osbModes["polled"], core.Spec{})
	server.Fail(standin.Fault{Method: http.MethodGet, Path: "/command/status/", Status: http.StatusNotFound, Body: `{"code":"INVALID_REQUEST_BODY","message":"command not found: 1"}`, Times: 2})
	res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "echo once; exit 3"})
	assert.Equal(t, 3, res.ExitCode, res.Reason)
	assert.Empty(t, res.ErrorType)
	assert.Equal(t, "once", strings.TrimSpace(stdout))
	assert.Len(t, server.Requests(http.MethodPost, "/command"), 2, "the probe, and the command once")
}

// Daemons refuse a command in a directory that does not exist, and make one for a session.
func TestOpenSandboxMissingDirectoryFailsACommandAndIsMadeForASession(t *testing.T) {
	server := startStandin(t)
	dir := filepath.Join(t.TempDir(), "not", "there")
	s := osbBox(t, server, nil, core.Spec{})
	ctx := osbContext(t)
	_, err := s.Exec(ctx, core.ExecRequest{Command: "echo ran", Cwd: dir}, core.Discard)
	assert.ErrorContains(t, err, "working directory does not exist: "+dir)
	assert.NoDirExists(t, dir)
	session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "pwd", Cwd: dir, NoTerminal: true})
	require.NoError(t, err)
	out, _ := osbDrained(ctx, t, session)
	assert.Equal(t, dir+"\n", out)
	require.NoError(t, session.Close(ctx))
}

// Daemons answer the download of a directory with 200, an absurd length, and nothing.
func TestOpenSandboxDownloadOfADirectoryIsAnErrorAndTakesNoMemory(t *testing.T) {
	s := osbBox(t, startStandin(t), nil, core.Spec{})
	to := filepath.Join(t.TempDir(), "to")
	err := s.Download(osbContext(t), t.TempDir(), to)
	require.Error(t, err)
	assert.NoFileExists(t, to)
}

// Servers go on saying that a sandbox runs when the daemon in it has died.
func TestOpenSandboxDeadDaemonOfARunningSandboxIsNoSuccess(t *testing.T) {
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			s := osbBox(t, server, blocks, core.Spec{})
			server.Fail(standin.Fault{Method: http.MethodPost, Path: "/command", Times: 99, Status: http.StatusBadGateway, Body: `{"code":"BACKEND_CONNECTION_FAILED","message":"Could not connect"}`})
			res, _, _ := osbRun(t, s, core.ExecRequest{Command: "true"})
			assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
			assert.Equal(t, core.NoExitCode, res.ExitCode)
			st, err := s.Status(osbContext(t))
			require.NoError(t, err)
			assert.Equal(t, core.StatusRunning, st)
		})
	}
}

// Servers limit what a request names, and nothing else, once it names anything.
func TestOpenSandboxResourcesThatAreNotNamedHaveNoLimit(t *testing.T) {
	server := startStandin(t)
	for _, c := range []struct {
		asked core.Resources
		sent  string
	}{
		{core.Resources{}, `"resourceLimits":{"cpu":"1","memory":"2Gi"}`},
		{core.Resources{CPU: 2}, `"resourceLimits":{"cpu":"2"}`},
		{core.Resources{MemoryMiB: 512}, `"resourceLimits":{"memory":"512Mi"}`},
	} {
		osbBox(t, server, nil, core.Spec{Resources: c.asked})
		made := server.Requests(http.MethodPost, "/v1/sandboxes")
		assert.Contains(t, string(made[len(made)-1].Body), c.sent)
	}
}

// Where servers ask nobody for a key, an id is all that it takes. Ours is asked all the same, wherever it may be sent.
func TestOpenSandboxKeyIsSentToAProxyThatMayAskForIt(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	osbRun(t, s, core.ExecRequest{Command: "true"})
	session, err := s.OpenPTY(osbContext(t), core.PTYSpec{Command: "true"})
	require.NoError(t, err)
	require.NoError(t, session.Close(context.Background()))
	asked := server.Requests("", "/")
	require.NotEmpty(t, asked)
	for _, r := range asked {
		assert.Equal(t, standin.Key, r.Header.Get("OPEN-SANDBOX-API-KEY"), r.Path)
	}
}
