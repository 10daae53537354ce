package opensandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

func TestDomainSettlesWhereTheServerIs(t *testing.T) {
	t.Setenv(envDomain, "")
	t.Setenv(envAPIKey, "from-env")
	for given, want := range map[string]string{
		`{}`: "http://localhost:8080",
		`{"connection":{"domain":" https://host:8080/prefix/ ","protocol":"http"}}`: "https://host:8080/prefix",
		`{"connection":{"domain":"host"}}`:                                          "http://host",
		`{"connection":{"domain":"host","protocol":"https"}}`:                       "https://host",
	} {
		c, err := loadConfig(json.RawMessage(given))
		require.NoError(t, err, given)
		assert.Equal(t, want, c.Connection.base(), given)
		assert.Equal(t, "from-env", *c.Connection.APIKey)
	}
	t.Setenv(envDomain, "other:1")
	c, err := loadConfig(nil)
	require.NoError(t, err)
	assert.Equal(t, "http://other:1", c.Connection.base())
}

func TestValuesThatMakeNoSenseAreNamed(t *testing.T) {
	for given, named := range map[string]string{
		`{"connection":{"domain":"ftp://host"}}`:               "http or https",
		`{"connection":{"domain":"host?x=1"}}`:                 "query",
		`{"connection":{"domain":"host#x"}}`:                   "query or a fragment",
		`{"connection":{"domain":"https://"}}`:                 "must name a host",
		`{"connection":{"transport_backend":"x"}}`:             "connection.transport_backend",
		`{"connection":{"api_key":"secret\n"}}`:                "connection.api_key",
		`{"create":{"image_pull_policy":"Sometimes"}}`:         "create.image_pull_policy",
		`{"create":{"timeout_s":0}}`:                           "create.timeout_s",
		`{"create":{"renew_interval_s":-1}}`:                   "create.renew_interval_s",
		`{"create":{"retries":-1}}`:                            "create.retries",
		`{"create":{"connect_poll_s":0}}`:                      "create.connect_poll_s",
		`{"probe":{"stable_count":0}}`:                         "probe.stable_count",
		`{"operations":{"close_timeout_s":0}}`:                 "operations.close_timeout_s",
		`{"operations":{"background_poll_interval_s":0}}`:      "operations.background_poll_interval_s",
		`{"attribution":{"key_prefix":"Not_A_Valid_Prefix/"}}`: "attribution.key_prefix",
		`{"attribution":{"key_prefix":"-bad.example.com/"}}`:   "attribution.key_prefix",
		`{"attribution":{"key_prefix":"bad..example.com/"}}`:   "attribution.key_prefix",
	} {
		_, err := New(json.RawMessage(given))
		require.ErrorContains(t, err, named, given)
		assert.Equal(t, core.KindInvalid, core.KindOf(err), given)
		assert.NotContains(t, err.Error(), "secret", given)
	}
	_, err := New(json.RawMessage(`{"operations":{"retriess":1}}`))
	assert.Equal(t, core.KindUnknownKey, core.KindOf(err))
	assert.ErrorContains(t, err, `"retries"`)
	_, err = New(json.RawMessage(`{"operations":{"close_timeout_s":null,"status_poll_timeout_s":null},"attribution":{"key_prefix":""}}`))
	assert.NoError(t, err)
}

func TestLabelsAreMadeFit(t *testing.T) {
	for given, want := range map[string]string{
		"swebench::x": "swebench_x", "": "metadata", "__x__": "x", "é": "metadata", "a b  c": "a_b_c",
		strings.Repeat("x", 62) + "__y": strings.Repeat("x", 62),
	} {
		assert.Equal(t, want, labelValue(given), given)
	}
}

func TestServersSayHowLongToLeaveThemAlone(t *testing.T) {
	for header, want := range map[string]time.Duration{"": 7, "3": 3 * time.Second, "-5": 0, "soon": 7, "99999999999": longestThrottle} {
		assert.Equal(t, want, retryAfter(header, 7), header)
	}
	in := retryAfter(time.Now().Add(10*time.Second).UTC().Format(http.TimeFormat), 7)
	assert.InDelta(t, 10, in.Seconds(), 2)
	assert.Zero(t, retryAfter(time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), 7))
}

func TestThrottledRequestIsSentAgainUnchanged(t *testing.T) {
	r := newReplayer(t)
	tries := 0
	r.answer = func(w http.ResponseWriter, path string) {
		if tries++; tries <= 5 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
	}
	i := r.instance(t, nil)
	_, err := i.ask(context.Background(), call{method: http.MethodPost, json: map[string]int{"a": 1}}, "/thing", nil)
	assert.Equal(t, http.StatusTooManyRequests, statusOf(err))
	assert.Equal(t, 4, tries)
	_, err = i.ask(context.Background(), call{method: http.MethodPost, json: map[string]int{"a": 1}}, "/thing", nil)
	assert.NoError(t, err)
	for _, req := range r.requests {
		if req.path == "/thing" {
			assert.JSONEq(t, `{"a":1}`, req.body)
		}
	}
	// What was streamed can't be sent again.
	tries = 0
	c := call{method: http.MethodPost, stream: strings.NewReader("x"), length: 1, contentType: "text/plain"}
	_, err = i.ask(context.Background(), c, "/thing", nil)
	assert.Equal(t, http.StatusTooManyRequests, statusOf(err))
	assert.Equal(t, 1, tries)
}

// Who has no time for what the server asks for is told what it said, and not that time ran out.
func TestThrottledRequestWithoutTheTimeForAnotherIsAnswered(t *testing.T) {
	r := newReplayer(t)
	r.answer = func(w http.ResponseWriter, _ string) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte(`{"code":"KUBERNETES::POOL_CAPACITY_EXHAUSTED","message":"the pool is empty"}`))
	}
	i := r.instance(t, nil)
	_, err := i.ask(context.Background(), call{method: http.MethodPost, timeout: 5 * time.Second}, "/thing", nil)
	assert.ErrorContains(t, err, "the pool is empty")
	assert.True(t, mayHeal(err))
	_, sent := r.sent("/thing")
	assert.True(t, sent)
}

// Daemons answer whatever they could not do with the status of servers that have no time.
func TestWhatWillBeAsWrongTheNextTimeIsFinal(t *testing.T) {
	for message, want := range map[string]bool{
		"error creating target directory /a/b. mkdir /a: not a directory":               false,
		"error opening destination file /d. open /d: is a directory":                    false,
		"error opening destination file /proc/x. open /proc/x: permission denied":       false,
		"error writing file " + strings.Repeat("/x", 1000) + ": file name too long":     false,
		"error writing file /permission denied. write /permission denied: i/o timeout":  true,
		"error writing file /x. write /x: no space left on device":                      true,
		"error opening destination file /x. open /x: text file busy":                    true,
		"error creating target directory /not a directory/x. mkdir: connection refused": true,
	} {
		body, err := json.Marshal(map[string]string{"code": codeRuntime, "message": message})
		require.NoError(t, err)
		e := newAPIError(&http.Response{StatusCode: http.StatusInternalServerError}, body)
		assert.Equal(t, want, mayHeal(fmt.Errorf("uploading: %w", e)), message)
		assert.Less(t, len(e.message), 510)
	}
	assert.True(t, mayHeal(&apiError{status: 500, code: "DOCKER::SANDBOX_START_FAILED", message: "permission denied"}), "the server's own")
}

func TestWhatMayHealIsTriedAgain(t *testing.T) {
	for _, status := range []int{408, 409, 425, 429, 500, 502, 503, 504} {
		assert.True(t, mayHeal(&apiError{status: status}), status)
	}
	for _, status := range []int{400, 401, 403, 404, 422} {
		assert.False(t, mayHeal(&apiError{status: status, message: "timeout"}), status)
	}
	assert.True(t, mayHeal(&apiError{status: 599, message: "ErrImagePull"}))
	assert.False(t, mayHeal(&apiError{status: 599, message: "no"}))
	for _, text := range []string{"Connection refused", "pod IP is not yet available", "HTTP 503 x", "status code: 409", "Server disconnected"} {
		assert.True(t, mayHeal(errors.New(text)), text)
	}
	for _, text := range []string{"HTTP 404", "no such thing", "status code: 4090"} {
		assert.False(t, mayHeal(errors.New(text)), text)
	}
	assert.False(t, mayHeal(fmt.Errorf("timeout: %w", context.Canceled)))
	assert.False(t, mayHeal(core.Errorf(core.KindInvalid, "", "timeout")))
	assert.True(t, mayHeal(core.Errorf(core.KindVerification, "", "x")))
}

func TestOnlyWhatSurelyDidNotBeginIsSentAgain(t *testing.T) {
	for _, c := range []struct {
		e    apiError
		want bool
	}{
		{apiError{status: 502, code: codeNotReached}, true},
		{apiError{status: 502}, true},
		{apiError{status: 502, message: "Bad Gateway"}, true},
		{apiError{status: 502, message: "<html>upstream prematurely closed connection</html>"}, false},
		{apiError{status: 502, code: "BACKEND_RESPONSE_FAILED"}, false},
		{apiError{status: 504, code: "BACKEND_TIMEOUT"}, false},
		{apiError{status: 503}, false},
	} {
		assert.Equal(t, c.want, neverStarted(&c.e), "%v", &c.e)
	}
}

func TestSandboxesOfOneMomentAreNotRenewedAtOne(t *testing.T) {
	const every = time.Minute
	thirds := map[time.Duration]bool{}
	for range 300 {
		first := firstRenewal(every)
		require.LessOrEqual(t, first, every)
		require.GreaterOrEqual(t, first, every/2)
		thirds[(first-every/2)/(every/6+1)] = true
	}
	require.Len(t, thirds, 3, "the first renewals crowd in a part of the time")
	require.Equal(t, time.Duration(1), firstRenewal(1), "the shortest interval there is")
}

func TestStatesAreTold(t *testing.T) {
	for state, want := range map[string]core.Status{
		"Running": core.StatusRunning, "PAUSED": core.StatusPaused, "Pausing": core.StatusStarting, "Terminated": core.StatusStopped,
		"Failed": core.StatusError, "Stopping": core.StatusUnknown, "Allocated": core.StatusUnknown, "": core.StatusUnknown,
	} {
		assert.Equal(t, want, sandboxStatus{State: state}.status(), state)
	}
}

func TestUsersAndVariablesAreWrittenIntoSessions(t *testing.T) {
	assert.Equal(t, `su -s /bin/sh -c 'env Q='"'"'a b'"'"' sh -c '"'"'id -un; echo $Q; sleep 0.1'"'"'' agent`,
		asUser(withEnv("id -un; echo $Q; sleep 0.1", map[string]string{"Q": "a b"}), "agent"))
	assert.Equal(t, "su -s /bin/sh agent", asUser("", "agent"))
	assert.Equal(t, `env A=1 sh -c 'exec "$(command -v bash || echo sh)"'`, withEnv("", map[string]string{"A": "1"}))
	for user, want := range map[string]core.Kind{"name:group": core.KindNotSupported, "1:group": core.KindNotSupported} {
		_, err := readAccount("exec", user)
		assert.Equal(t, want, core.KindOf(err), user)
	}
}

// A background command's state that lacks what decides is never taken for success.
func TestPolledStateWithoutItsFieldsIsAFailure(t *testing.T) {
	for answer, field := range map[string]string{`{}`: "running", `{"running":false}`: "exit_code"} {
		r := newReplayer(t)
		r.answer = func(w http.ResponseWriter, path string) {
			if strings.HasPrefix(path, "/command/status/") {
				_, _ = w.Write([]byte(answer))
				return
			}
			replay(http.StatusOK, []string{`{"type":"init","text":"1"}` + "\n\n" + `{"type":"execution_complete"}` + "\n\n"})(w, path)
		}
		i := r.instance(t, map[string]any{"operations": map[string]any{"background_exec": true}})
		res, _, _, err := runIn(t, i, core.ExecRequest{Command: "x"})
		require.NoError(t, err)
		assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
		assert.Contains(t, res.Reason, field)
	}
}

// A daemon that says nothing holds up neither who gives up nor the command's own time, however long requests may take.
func TestSilentDaemonHoldsNoBackgroundCommand(t *testing.T) {
	for name, chunks := range map[string][]string{"caller_gives_up": nil, "time_is_over": {`{"type":"ping"}` + "\n\n"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newReplayer(t)
			over, asked := make(chan struct{}), make(chan struct{})
			defer close(over)
			r.answer = func(w http.ResponseWriter, path string) {
				if chunks != nil {
					replay(http.StatusOK, chunks)(w, path)
				}
				close(asked)
				<-over
			}
			i := r.instance(t, map[string]any{
				"connection": map[string]any{"domain": r.URL, "api_key": "k", "use_server_proxy": true, "request_timeout_s": 300},
				"operations": map[string]any{"background_exec": true},
			})
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			req := core.ExecRequest{Command: "x", Timeout: 10 * time.Millisecond}
			if chunks == nil {
				req.Timeout = time.Minute
				go func() {
					<-asked
					cancel()
				}()
			}
			began := time.Now()
			res, err := i.Exec(ctx, req, core.Discard)
			assert.Less(t, time.Since(began), 15*time.Second)
			if chunks == nil {
				assert.Equal(t, core.KindCanceled, core.KindOf(err), "%v", err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType, res.Reason)
		})
	}
}

// Polls may be half a minute apart: what was killed before its time is over is found when that has passed.
func TestKilledBackgroundCommandHasNotTimedOut(t *testing.T) {
	const timeout = 20 * time.Second
	long := time.Now().Add(-time.Hour)
	for answer, want := range map[string]bool{
		`{"exit_code":-1,"started_at":"2026-01-01T10:00:00.5Z","finished_at":"2026-01-01T10:00:07.25Z"}`:   false,
		`{"exit_code":-1,"started_at":"2026-01-01T10:00:00Z","finished_at":"2026-01-01T10:00:20.1Z"}`:      true,
		`{"exit_code":-1,"started_at":"2026-01-01T10:00:00.4Z","finished_at":"2026-01-01T10:00:20.1Z"}`:    true,
		`{"exit_code":-1,"started_at":"2026-01-01T11:00:00+01:00","finished_at":"2026-01-01T10:00:03.1Z"}`: false,
		`{"exit_code":-1,"started_at":"1970-01-01T00:00:00Z","finished_at":"1970-01-01T00:00:00Z"}`:        true,
		`{"exit_code":-1,"started_at":"yesterday","finished_at":"today"}`:                                  true,
		`{"exit_code":-1,"finished_at":null}`:                                                              true,
		`{"exit_code":137,"started_at":"2026-01-01T10:00:00Z","finished_at":"2026-01-01T10:00:20.1Z"}`:     false,
	} {
		var st commandStatus
		require.NoError(t, json.Unmarshal([]byte(answer), &st), answer)
		assert.Equal(t, want, st.expired(timeout, long), answer)
		assert.False(t, st.expired(timeout, time.Now()), "its time is not over here")
		assert.False(t, st.expired(0, long), "it has no end")
	}
}

func TestOutOfMemoryIsToldByTheKernelsCounter(t *testing.T) {
	r := newReplayer(t)
	count := 0
	r.answer = func(w http.ResponseWriter, path string) {
		body, _ := r.sent(path)
		last := `{"type":"error","error":{"ename":"CommandExecError","evalue":"137","traceback":["exit status 137"]}}`
		chunks := []string{`{"type":"init","text":"1"}` + "\n\n"}
		if strings.Contains(body, "memory.events") {
			chunks = append(chunks, fmt.Sprintf(`{"type":"stdout","text":"oom_kill %d"}`, count)+"\n\n")
			last = `{"type":"execution_complete"}`
		}
		replay(http.StatusOK, append(chunks, last+"\n\n"))(w, path)
	}
	i := r.instance(t, nil)
	i.oomKills = 0
	res, _, _, err := runIn(t, i, core.ExecRequest{Command: "exit 137"})
	require.NoError(t, err)
	assert.Equal(t, core.ExecResult{ExitCode: 137}, res, "a command's own 137")
	count = 1
	res, _, _, err = runIn(t, i, core.ExecRequest{Command: "x"})
	require.NoError(t, err)
	assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
	assert.Equal(t, 137, res.ExitCode)
	assert.Contains(t, res.Reason, "out of memory")
	res, _, _, err = runIn(t, i, core.ExecRequest{Command: "exit 137"})
	require.NoError(t, err)
	assert.Empty(t, res.ErrorType, "it was counted before")
}

// A daemon that starts the command of an ended session again finds its lock.
func TestSessionCommandRunsOnce(t *testing.T) {
	note := filepath.Join(t.TempDir(), "runs")
	lock := note + ".lock"
	line := sessionCommand("echo run >> "+quote(note)+"; exit 3", nil, "", lock)
	for n, want := range []int{3, 125, 125} {
		out, err := exec.Command("bash", "--norc", "--noprofile", "-c", line).CombinedOutput()
		var code *exec.ExitError
		require.ErrorAs(t, err, &code, "%s", out)
		assert.Equal(t, want, code.ExitCode())
		assert.Equal(t, n > 0, strings.Contains(string(out), ranBefore), "%s", out)
	}
	ran, err := os.ReadFile(note)
	require.NoError(t, err)
	assert.Equal(t, "run\n", string(ran))
}

func TestCommandIsNoOptionOfItsShell(t *testing.T) {
	for command, want := range map[string]string{"--help": " --help", "-c x": " -c x", "+x": " +x", "ls -l": "ls -l"} {
		assert.Equal(t, want, plainCommand(command))
	}
}

// The daemon runs as a job that a shell has put into the background: what it starts ignores interrupts, unless it is told
// not to.
func TestSessionsObeyInterruptsWhereTheDaemonDoesNot(t *testing.T) {
	for _, command := range []string{"echo up; exec sleep 60", "echo up; sleep 60; echo late", ""} {
		line := sessionCommand(command, nil, "", "")
		cmd := exec.Command("sh", "-c", "trap '' INT; exec bash --norc --noprofile -c "+quote(line))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		stdin, err := cmd.StdinPipe()
		require.NoError(t, err)
		stdout, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		hang := time.AfterFunc(20*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		if command == "" { // the shell itself, which is not interactive here
			_, err = io.WriteString(stdin, "echo up; exec sleep 60\n")
			require.NoError(t, err)
		}
		said := make([]byte, 3)
		_, err = io.ReadFull(stdout, said)
		require.NoError(t, err)
		assert.Equal(t, "up\n", string(said))
		require.NoError(t, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT))
		rest, err := io.ReadAll(stdout)
		require.NoError(t, err)
		assert.Empty(t, rest)
		err = cmd.Wait()
		hang.Stop()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
		status := exit.Sys().(syscall.WaitStatus)
		assert.True(t, status.ExitStatus() == 130 || status.Signal() == syscall.SIGINT, "%q: %v", command, err)
		_ = stdin.Close()
	}
}
