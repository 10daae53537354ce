package tests

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	standin "github.com/nemo-gym/nemo_gym_sandbox/tests/standins/opensandbox"
)

// osbSoon bounds what takes a moment on a machine that has nothing else to do.
const osbSoon = 30 * time.Second

// osbBox starts a sandbox on a stand-in server.
func osbBox(t *testing.T, server *standin.Server, blocks settings, spec core.Spec) *core.Sandbox {
	t.Helper()
	spec.Image = "stand-in:1"
	s := core.NewSandbox(newOpenSandbox(t, server, blocks), spec)
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	require.NoError(t, s.Start(ctx))
	t.Cleanup(func() { assert.NoError(t, s.Stop(context.Background())) })
	return s
}

// osbRun runs a command and gives its result and what it printed.
func osbRun(t *testing.T, s *core.Sandbox, req core.ExecRequest) (core.ExecResult, string, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	out := core.NewCollector(0)
	defer out.Close()
	res, err := s.Exec(ctx, req, out)
	require.NoError(t, err)
	return res, out.Output(core.Stdout).String(), out.Output(core.Stderr).String()
}

// osbModes are the two ways in which commands are run.
var osbModes = map[string]settings{
	"streamed": {},
	"polled":   {"operations": settings{"background_exec": true, "background_poll_initial_s": 0.01, "background_poll_interval_s": 0.05}},
}

func TestOpenSandboxCommands(t *testing.T) {
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			s := osbBox(t, startStandin(t), blocks, core.Spec{Env: map[string]string{"FROM_SPEC": "1"}})
			res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "echo $FROM_SPEC $MINE; exit 3", Env: map[string]string{"MINE": "a b"}})
			assert.Equal(t, 3, res.ExitCode)
			assert.Empty(t, res.ErrorType)
			assert.Equal(t, "1 a b", strings.TrimSpace(stdout))
			res, _, _ = osbRun(t, s, core.ExecRequest{Command: "kill -9 $$"})
			assert.Equal(t, 137, res.ExitCode)
			assert.Empty(t, res.ErrorType)
			res, stdout, _ = osbRun(t, s, core.ExecRequest{Argv: []string{"printf", "%s|", "a b", "$X", "it's"}})
			assert.Zero(t, res.ExitCode)
			assert.Equal(t, "a b|$X|it's|", stdout)
			_, stdout, _ = osbRun(t, s, core.ExecRequest{Command: "id -u", User: "65534"})
			assert.Equal(t, "65534", strings.TrimSpace(stdout))
			_, stdout, _ = osbRun(t, s, core.ExecRequest{Command: "echo it\\'s $(id -un)", User: "nobody"})
			assert.Equal(t, "it's nobody", strings.TrimSpace(stdout))
		})
	}
}

func TestOpenSandboxTimeoutIsAResultWithWhatWasPrinted(t *testing.T) {
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			server := startStandin(t)
			s := osbBox(t, server, blocks, core.Spec{})
			begun := time.Now()
			res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "echo early; sleep 60; echo late", Timeout: 300 * time.Millisecond})
			assert.Equal(t, core.NoExitCode, res.ExitCode)
			assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
			assert.Contains(t, res.Reason, "opensandbox command timed out after 0.3s")
			assert.Equal(t, "early", strings.TrimSpace(stdout))
			assert.Less(t, time.Since(begun), 20*time.Second)
		})
	}
}

func TestOpenSandboxCancelEndsTheCommand(t *testing.T) {
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			server := startStandin(t)
			s := osbBox(t, server, blocks, core.Spec{})
			begun := filepath.Join(t.TempDir(), "begun")
			after := begun + ".after"
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := s.Exec(ctx, core.ExecRequest{Command: "touch " + begun + "; sleep 3; touch " + after}, core.Discard)
				done <- err
			}()
			require.Eventually(t, func() bool { _, err := os.Stat(begun); return err == nil }, osbSoon, 5*time.Millisecond)
			cancel()
			err := <-done
			assert.Equal(t, core.KindCanceled, core.KindOf(err), "%v", err)
			assert.Len(t, server.Requests(http.MethodDelete, "/command"), 1)
			res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "pgrep -f 'touch " + begun + "' | grep -vx $$ | grep -vx $PPID || echo none"})
			assert.Zero(t, res.ExitCode)
			assert.Equal(t, "none", strings.TrimSpace(stdout))
			assert.NoFileExists(t, after)
		})
	}
}

// What may have begun is not begun again; what can't have begun is.
func TestOpenSandboxCommandRunsOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault standin.Fault
		runs  string
		good  bool
	}{
		{"not_reached", standin.Fault{Times: 2, Status: 502, Body: `{"code":"BACKEND_CONNECTION_FAILED","message":"Could not connect"}`}, "1", true},
		{"not_reached_without_a_code", standin.Fault{Times: 2, Status: 502, Body: "Bad Gateway"}, "1", true},
		{"throttled", standin.Fault{Times: 2, Status: 429, Header: map[string]string{"Retry-After": "0"}}, "1", true},
		{"never_reached", standin.Fault{Times: 99, Status: 502, Body: `{"code":"BACKEND_CONNECTION_FAILED","message":"Could not connect"}`}, "", false},
		{"answer_lost", standin.Fault{Serve: true, Drop: true}, "1", false},
		{"may_have_begun", standin.Fault{Status: 502, Body: `{"code":"BACKEND_RESPONSE_FAILED","message":"broke"}`}, "", false},
		{"silent_backend", standin.Fault{Status: 504, Body: `{"code":"BACKEND_TIMEOUT","message":"nothing came"}`}, "", false},
		{"cut_in_good_order", standin.Fault{Serve: true, Cut: 150}, "1", false},
		{"cut_rudely", standin.Fault{Serve: true, Cut: 150, Rude: true}, "1", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			s := osbBox(t, server, nil, core.Spec{})
			note := filepath.Join(t.TempDir(), "runs")
			c.fault.Path, c.fault.Method = "/command", http.MethodPost
			server.Fail(c.fault)
			res, _, _ := osbRun(t, s, core.ExecRequest{Command: "printf 1 >> " + note + "; echo " + strings.Repeat("x", 200)})
			if c.good {
				assert.Equal(t, core.ExecResult{}, res)
			} else {
				assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
				assert.Equal(t, core.NoExitCode, res.ExitCode)
				assert.NotEmpty(t, res.Reason)
			}
			p, err := os.ReadFile(note)
			if c.runs != "" {
				require.NoError(t, err)
			}
			assert.Equal(t, c.runs, string(p))
		})
	}
}

func TestOpenSandboxLossTellsItsCause(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	server.SetStatus(s.ID(), "Failed", "OOMKilled", "Container was OOMKilled")
	res, _, _ := osbRun(t, s, core.ExecRequest{Command: "true"})
	assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
	assert.Contains(t, res.Reason, "Sandbox was OOM-killed")
	assert.Contains(t, res.Reason, "backend unreachable")
	st, err := s.Status(context.Background())
	require.NoError(t, err)
	assert.Equal(t, core.StatusError, st)
}

func TestOpenSandboxServicesOutliveTheirCommand(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	pid := filepath.Join(t.TempDir(), "pid")
	res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "setsid sleep 60 >/dev/null 2>&1 & echo $! > " + pid + "; echo \"$A\"", KeepBackground: true, Env: map[string]string{"A": "b c"}})
	assert.Zero(t, res.ExitCode, res.Reason)
	assert.Equal(t, "b c", strings.TrimSpace(stdout))
	res, _, _ = osbRun(t, s, core.ExecRequest{Command: "kill $(cat " + pid + ")"})
	assert.Zero(t, res.ExitCode, "the service does not run any more")
	res, stdout, _ = osbRun(t, s, core.ExecRequest{Command: "echo early; sleep 60", KeepBackground: true, Timeout: 300 * time.Millisecond})
	assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
	assert.Equal(t, 124, res.ExitCode)
	assert.Contains(t, res.Reason, "native session was deleted")
	assert.Equal(t, "early", strings.TrimSpace(stdout))
	assert.Len(t, server.Requests(http.MethodDelete, "/session/"), 2, "each session is deleted exactly once")
}

func TestOpenSandboxFiles(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{Files: []core.File{{Path: "from/spec.txt", Content: "héllo\n"}}})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	folder := t.TempDir()
	local := filepath.Join(folder, "local")
	for _, size := range []int{0, 1, 18433, 3<<20 + 7} {
		content := bytes.Repeat([]byte{0, 255, '\r', '\n', 'x'}, size/5+1)[:size]
		require.NoError(t, os.WriteFile(local, content, 0o640))
		require.NoError(t, s.Upload(ctx, local, "up/naïve \"name\"'s"))
		back := filepath.Join(folder, "made", "back")
		require.NoError(t, s.Download(ctx, "up/naïve \"name\"'s", back))
		got, err := os.ReadFile(back)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got), "of %d bytes", size)
	}
	_, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "stat -c %a up/* from/*; cat from/spec.txt"})
	assert.Equal(t, "640\n755\nhéllo", strings.TrimSpace(stdout))
	assert.Equal(t, core.KindNotFound, core.KindOf(s.Download(ctx, "nope", local)))
	assert.Equal(t, core.KindInvalid, core.KindOf(s.Download(ctx, "up", local)))
	assert.Equal(t, core.KindNotFound, core.KindOf(s.Upload(ctx, filepath.Join(folder, "nope"), "x")))
}

// A place where a file can't be will be none the next time either.
func TestOpenSandboxUploadToAnImpossiblePlaceIsTriedOnce(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{Files: []core.File{{Path: "file", Content: "x"}}})
	local := filepath.Join(t.TempDir(), "local")
	require.NoError(t, os.WriteFile(local, []byte("x"), 0o600))
	before := len(server.Requests(http.MethodPost, "/files/upload"))
	for _, place := range []string{"file/below", "."} {
		err := s.Upload(osbContext(t), local, place)
		assert.ErrorContains(t, err, place)
		assert.Regexp(t, "not a directory|is a directory", err.Error())
	}
	assert.Len(t, server.Requests(http.MethodPost, "/files/upload"), before+2)
}

// Daemons tell of a link itself, not of the file that it leads to.
func TestOpenSandboxLinksLeadToTheirFiles(t *testing.T) {
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			s := osbBox(t, server, blocks, core.Spec{})
			osbRun(t, s, core.ExecRequest{Command: `: >empty; ln -s empty l; : >'$e'; printf abc >full; ln -s full f; mkfifo pipe; ln -s pipe p`})
			back := filepath.Join(t.TempDir(), "back")
			for file, want := range map[string]string{"l": "", "$e": "", "f": "abc"} {
				require.NoError(t, s.Download(osbContext(t), file, back), file)
				got, err := os.ReadFile(back)
				require.NoError(t, err)
				assert.Equal(t, want, string(got), file)
			}
			assert.Equal(t, core.KindInvalid, core.KindOf(s.Download(osbContext(t), "p", back)))
			server.Fail(standin.Fault{Path: "/files/download", Serve: true, Cut: 0}) // in good order, and too short
			require.NoError(t, s.Download(osbContext(t), "f", back))
			assert.Len(t, server.Requests(http.MethodGet, "/files/download"), 6, "the last one twice")
			for _, r := range server.Requests(http.MethodPost, "/command") {
				assert.NotContains(t, r.Body, `"uid"`, "the daemon's files are the daemon's, who may not be root")
			}
		})
	}
}

// A transfer that broke off is made again, and what came of it before is nowhere to be seen.
func TestOpenSandboxTransfersSurviveCuts(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	folder := t.TempDir()
	local, back := filepath.Join(folder, "local"), filepath.Join(folder, "back")
	content := bytes.Repeat([]byte("0123456789"), 50_000)
	require.NoError(t, os.WriteFile(local, content, 0o600))
	server.Fail(standin.Fault{Path: "/files/upload", Drop: true, Times: 2})
	require.NoError(t, s.Upload(ctx, local, "f"))
	server.Fail(standin.Fault{Path: "/files/download", Serve: true, Cut: 100_000, Rude: true})
	server.Fail(standin.Fault{Path: "/files/download", Serve: true, Cut: 200_000}) // in good order, and still too short
	require.NoError(t, s.Download(ctx, "f", back))
	got, err := os.ReadFile(back)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(content, got))
	server.Fail(standin.Fault{Path: "/files/download", Serve: true, Cut: 1000, Rude: true, Times: 99})
	require.NoError(t, os.Remove(back))
	require.Error(t, s.Download(ctx, "f", back))
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Len(t, left, 1, "nothing but the uploaded file")
}

func TestOpenSandboxManagementKeyStaysWithTheServer(t *testing.T) {
	for _, proxied := range []bool{true, false} {
		server := startStandin(t)
		s := osbBox(t, server, settings{"connection": settings{"use_server_proxy": proxied}}, core.Spec{Env: map[string]string{"EXECD_ACCESS_TOKEN": "box-token"}})
		osbRun(t, s, core.ExecRequest{Command: "true"})
		ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
		session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "echo x"})
		cancel()
		require.NoError(t, err)
		require.NoError(t, session.Close(context.Background()))
		daemons := 0
		for _, r := range server.Requests("", "/") {
			if r.Daemon {
				daemons++
				assert.Equal(t, !proxied, r.Direct)
				assert.Equal(t, proxied, r.Header.Get("OPEN-SANDBOX-API-KEY") != "", r.Path)
				assert.Equal(t, "box-token", r.Header.Get("X-EXECD-ACCESS-TOKEN"), r.Path)
			}
		}
		assert.Greater(t, daemons, 4)
	}
}

func TestOpenSandboxFailedCreateLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		name   string
		fault  standin.Fault
		blocks settings
		kind   core.Kind
		tries  int
	}{
		{"probe_fails", standin.Fault{Times: 999, Path: "/command", Status: 500, Body: `{"code":"RUNTIME_ERROR","message":"x"}`},
			settings{"probe": settings{"deadline_s": 0.1}}, core.KindVerification, 3},
		{"wrong_answer", standin.Fault{Path: "/never"}, settings{"probe": settings{"deadline_s": 0.1, "expected_stdout": "other"}}, core.KindVerification, 3},
		{"daemon_is_silent", standin.Fault{Times: 999, Path: "/ping", Status: 502}, settings{"create": settings{"timeout_s": 0.2}}, core.KindTimeout, 3},
		{"refused", standin.Fault{Times: 999, Path: "/v1/sandboxes", Status: 400, Body: `{"code":"SANDBOX::INVALID_PARAMETER","message":"no"}`}, nil, core.KindCreate, 1},
		{"unauthorized", standin.Fault{Times: 999, Path: "/v1/sandboxes", Status: 401, Body: `{"code":"INVALID_API_KEY","message":"no"}`}, nil, core.KindAuth, 1},
		{"server_fault", standin.Fault{Times: 999, Path: "/v1/sandboxes", Method: http.MethodPost, Status: 500, Body: `{"code":"DOCKER::SANDBOX_IMAGE_PULL_FAILED","message":"no"}`}, nil, core.KindCreate, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			server.Fail(c.fault)
			s := core.NewSandbox(newOpenSandbox(t, server, c.blocks), core.Spec{Image: "i"})
			ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
			defer cancel()
			err := s.Start(ctx)
			assert.Equal(t, c.kind, core.KindOf(err), "%v", err)
			assert.Len(t, server.Requests(http.MethodPost, "/v1/sandboxes"), c.tries)
			assert.Empty(t, server.Sandboxes())
		})
	}
}

// The server names a sandbox only when it has made it; who gives up before must not leave it there.
func TestOpenSandboxCanceledCreateLeavesNothing(t *testing.T) {
	server := startStandin(t)
	server.Fail(standin.Fault{Path: "/v1/sandboxes", Method: http.MethodPost, Delay: 300 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	asked := server.Changed()
	done := make(chan error, 1)
	s := core.NewSandbox(newOpenSandbox(t, server, nil), core.Spec{Image: "i"})
	go func() { done <- s.Start(ctx) }()
	<-asked
	cancel()
	err := <-done
	assert.Equal(t, core.KindCanceled, core.KindOf(err), "%v", err)
	assert.Len(t, server.Requests(http.MethodDelete, "/v1/sandboxes/"), 1)
	assert.Empty(t, server.Sandboxes())
}

func TestOpenSandboxPauseResumeConnect(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{Workdir: filepath.Join(t.TempDir(), "made")})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	require.NoError(t, s.Pause(ctx))
	st, err := s.Status(ctx)
	require.NoError(t, err)
	assert.Equal(t, core.StatusPaused, st)
	assert.Equal(t, core.KindConflict, core.KindOf(s.Pause(ctx)))
	require.NoError(t, s.Resume(ctx))
	s.SetDefaultUser("nobody")
	d, err := s.Serialize(ctx, "")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"sandbox_id": s.ID()}, d)
	other, err := core.Connect(ctx, newOpenSandbox(t, server, nil), d)
	require.NoError(t, err)
	_, stdout, _ := osbRun(t, other, core.ExecRequest{Command: "pwd; id -un"})
	assert.Equal(t, filepath.Join("made")+"\nnobody", strings.TrimSpace(stdout[strings.LastIndex(strings.Split(stdout, "\n")[0], "/")+1:]))
	require.NoError(t, other.Disconnect())
	assert.Len(t, server.Sandboxes(), 1)
	_, err = core.Connect(ctx, newOpenSandbox(t, server, nil), map[string]any{"sandbox_id": "nope"})
	assert.Equal(t, core.KindNotFound, core.KindOf(err), "%v", err)
}

// A second pause is refused, and changes nothing: whoever went back to a session now would meet a sandbox that stands still.
func TestOpenSandboxSecondPauseLeavesSessionsAlone(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	ctx := osbContext(t)
	session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "read x; echo got $x", NoTerminal: true})
	require.NoError(t, err)
	require.NoError(t, s.Pause(ctx))
	before := len(server.Requests(http.MethodGet, "/pty/"))
	assert.Equal(t, core.KindConflict, core.KindOf(s.Pause(ctx)))
	assert.Len(t, server.Requests(http.MethodGet, "/pty/"), before)
	require.NoError(t, s.Resume(ctx))
	require.NoError(t, session.Write(ctx, []byte("it\n")))
	out, _ := osbDrained(ctx, t, session)
	assert.Equal(t, "got it\n", out)
	require.NoError(t, session.Close(ctx))
}

// What was serialized last counts, also when that was nothing, and also where the daemon is not root.
func TestOpenSandboxDefaultsAreThoseOfTheLastSerialize(t *testing.T) {
	for name, fault := range map[string]standin.Fault{
		"root": {Path: "/never"},
		"user": {Path: "/files/upload", Status: http.StatusInternalServerError, Times: 1,
			Body: `{"code":"RUNTIME_ERROR","message":"error opening destination file. open /opt/opensandbox/x: permission denied"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := startStandin(t)
			s := osbBox(t, server, nil, core.Spec{})
			whoIsThere := func(s *core.Sandbox) string {
				server.Fail(fault)
				d, err := s.Serialize(osbContext(t), "")
				require.NoError(t, err)
				other, err := core.Connect(osbContext(t), newOpenSandbox(t, server, nil), d)
				require.NoError(t, err)
				_, stdout, _ := osbRun(t, other, core.ExecRequest{Command: "id -un"})
				require.NoError(t, other.Disconnect())
				return strings.TrimSpace(stdout)
			}
			s.SetDefaultUser("nobody")
			assert.Equal(t, "nobody", whoIsThere(s))
			s.SetDefaultUser("")
			assert.Equal(t, "root", whoIsThere(s))
		})
	}
}

// An image's user may have no home either.
func TestOpenSandboxIsSharedThoughNoPlaceTakesItsDefaults(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{Workdir: t.TempDir()})
	server.Fail(standin.Fault{Path: "/files/upload", Status: http.StatusInternalServerError, Times: 2,
		Body: `{"code":"RUNTIME_ERROR","message":"error opening destination file. open /x: permission denied"}`})
	before := len(server.Requests(http.MethodPost, "/files/upload"))
	d, err := s.Serialize(osbContext(t), "")
	require.NoError(t, err)
	assert.Equal(t, map[string]any{"sandbox_id": s.ID()}, d)
	assert.Len(t, server.Requests(http.MethodPost, "/files/upload"), before+2)
}

func TestOpenSandboxLifeIsProlongedWhileHeld(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, settings{"create": settings{"renew_interval_s": 0.05}}, core.Spec{TTL: 100 * time.Second})
	first := server.Expiry(s.ID())
	path := "/v1/sandboxes/" + s.ID() + "/renew-expiration"
	require.Eventually(t, func() bool { return server.Expiry(s.ID()).After(first) }, osbSoon, 5*time.Millisecond)
	server.Fail(standin.Fault{Path: path, Status: 400, Times: 99})
	require.Eventually(t, func() bool {
		_, err := s.Exec(context.Background(), core.ExecRequest{Command: "true"}, core.Discard)
		return err != nil && strings.Contains(err.Error(), "lifetime renewal failed")
	}, osbSoon, 5*time.Millisecond)
	err := s.Stop(context.Background())
	assert.ErrorContains(t, err, "lifetime renewal failed")
	assert.Empty(t, server.Sandboxes(), "it is ended all the same")
}

func TestOpenSandboxTerminals(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	for range 5 {
		session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "echo \"$A\"; exit 7", Env: map[string]string{"A": "it's"}, NoTerminal: true})
		require.NoError(t, err)
		var got []byte
		for {
			p, err := session.Read(ctx)
			if err != nil {
				break
			}
			got = append(got, p...)
		}
		code, err := session.WaitExit(ctx)
		require.NoError(t, err)
		assert.Equal(t, 7, code)
		assert.Equal(t, "it's\n", string(got))
		require.NoError(t, session.Close(ctx))
	}
	shell, err := s.OpenPTY(ctx, core.PTYSpec{})
	require.NoError(t, err)
	res, err := shell.Exec(ctx, "echo $((6*7)); false")
	require.NoError(t, err)
	assert.Equal(t, 1, res.Code)
	assert.Contains(t, string(res.Stdout), "42")
	require.NoError(t, shell.Close(ctx))
	_, err = s.OpenPTY(ctx, core.PTYSpec{User: "1000"})
	assert.ErrorContains(t, err, "user name")
	_, err = s.AttachPTY(ctx, "nope", true, 0)
	assert.ErrorContains(t, err, "not found")
}

func TestOpenSandboxTakeoverDetachesAHolderOfTheSameProvider(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	until := func(from core.PTYSession, text string) {
		t.Helper()
		got := ""
		for !strings.Contains(got, text) {
			p, err := from.Read(ctx)
			require.NoError(t, err, "after %q", got)
			got += string(p)
		}
	}
	first, err := s.OpenPTY(ctx, core.PTYSpec{Command: "stty -echo; echo begun; while read x; do echo \"got $x\"; done"})
	require.NoError(t, err)
	until(first, "begun")
	_, err = s.AttachPTY(ctx, first.SessionID(), false, 0)
	require.ErrorContains(t, err, "already has an attached client", "without takeover it keeps what it has")
	waiting := make(chan error, 1)
	go func() {
		_, err := first.Read(ctx)
		waiting <- err
	}()
	second, err := s.AttachPTY(ctx, first.SessionID(), true, 0)
	require.NoError(t, err)
	require.ErrorContains(t, <-waiting, "detached")
	require.ErrorContains(t, first.Write(ctx, []byte("x\n")), "detached")
	require.False(t, first.Closed())
	require.NoError(t, second.Write(ctx, []byte("one\n")))
	until(second, "got one")
	// It comes back where it was, as from any detaching. Whoever is attached then is evicted, as nobody asked for that one.
	require.NoError(t, first.Reattach(ctx))
	until(first, "got one")
	_, err = second.WaitExit(ctx)
	require.ErrorContains(t, err, "taken over")
	third, err := s.AttachPTY(ctx, first.SessionID(), true, 0)
	require.NoError(t, err)
	_, err = first.Read(ctx)
	require.ErrorContains(t, err, "detached", "though the last attachment of all was another")
	require.NoError(t, third.Close(ctx))
	// A session of another provider is a stranger's.
	d, err := s.Serialize(ctx, "")
	require.NoError(t, err)
	other, err := core.Connect(ctx, newOpenSandbox(t, server, nil), d)
	require.NoError(t, err)
	require.NoError(t, first.Reattach(ctx))
	theirs, err := other.AttachPTY(ctx, first.SessionID(), true, 0)
	require.NoError(t, err)
	_, err = first.WaitExit(ctx)
	require.ErrorContains(t, err, "taken over")
	require.NoError(t, theirs.Close(ctx))
	require.NoError(t, first.Close(ctx))
	require.NoError(t, other.Disconnect())
}

func TestOpenSandboxEndIsSeenByAll(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	d, err := s.Serialize(ctx, "")
	require.NoError(t, err)
	other, err := core.Connect(ctx, newOpenSandbox(t, server, nil), d)
	require.NoError(t, err)
	asked := server.Changed()
	done := make(chan core.ExecResult, 1)
	go func() {
		res, err := s.Exec(ctx, core.ExecRequest{Command: "sleep 60"}, core.Discard)
		assert.NoError(t, err)
		done <- res
	}()
	<-asked
	require.NoError(t, other.Stop(ctx))
	res := <-done
	assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType, res.Reason)
	st, err := s.Status(ctx)
	require.NoError(t, err)
	assert.Equal(t, core.StatusStopped, st)
}

// Daemons start the command of a session that has ended again when somebody attaches.
func TestOpenSandboxEndedSessionIsNotAttachedTo(t *testing.T) {
	server := startStandin(t)
	s := osbBox(t, server, nil, core.Spec{})
	ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
	defer cancel()
	session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "echo x", NoTerminal: true})
	require.NoError(t, err)
	for err == nil {
		_, err = session.Read(ctx)
	}
	dialed := len(server.Requests(http.MethodGet, "/pty/"+session.SessionID()+"/ws"))
	_, err = s.AttachPTY(ctx, session.SessionID(), true, 0)
	assert.ErrorContains(t, err, "has ended")
	assert.Len(t, server.Requests(http.MethodGet, "/pty/"+session.SessionID()+"/ws"), dialed)
	require.NoError(t, session.Close(ctx))
}

func TestOpenSandboxEndlessOutputDoesNotHoldTheTimeoutBack(t *testing.T) {
	s := osbBox(t, startStandin(t), nil, core.Spec{})
	out := core.NewCollector(1 << 20)
	defer out.Close()
	begun := time.Now()
	res, err := s.Exec(context.Background(), core.ExecRequest{Command: "yes", Timeout: 300 * time.Millisecond}, out)
	require.NoError(t, err)
	assert.Equal(t, core.ErrorTypeTimeout, res.ErrorType)
	assert.True(t, strings.HasPrefix(out.Output(core.Stdout).String(), "y\ny\n"))
	assert.Less(t, time.Since(begun), 15*time.Second)
}

// A daemon reads variables into paths. What a caller names is meant as it is.
func TestOpenSandboxNamesAreTakenAsTheyAre(t *testing.T) {
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			server := startStandin(t)
			dir := filepath.Join(t.TempDir(), "w$HOME", "${x}")
			s := osbBox(t, server, blocks, core.Spec{Workdir: dir, Files: []core.File{{Path: "$PATH.txt", Content: "hi"}}})
			ctx, cancel := context.WithTimeout(context.Background(), osbSoon)
			defer cancel()
			for _, keep := range []bool{false, true} {
				_, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "pwd; cat '$PATH.txt'", KeepBackground: keep})
				assert.Equal(t, dir+"\nhi", strings.TrimSpace(stdout))
			}
			session, err := s.OpenPTY(ctx, core.PTYSpec{Command: "pwd", NoTerminal: true})
			require.NoError(t, err)
			p, err := session.Read(ctx)
			require.NoError(t, err)
			assert.Equal(t, dir+"\n", string(p))
			require.NoError(t, session.Close(ctx))
			back := filepath.Join(t.TempDir(), "back")
			require.NoError(t, s.Download(ctx, "$PATH.txt", back))
			require.NoError(t, s.Upload(ctx, back, dir+"/$HOME"))
			_, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "cat '$HOME'"})
			assert.Equal(t, "hi", strings.TrimSpace(stdout))
			assert.Equal(t, core.KindNotFound, core.KindOf(s.Download(ctx, "$NO", back)))
			// Not the program that runs, and not through it.
			_, _, _ = osbRun(t, s, core.ExecRequest{Command: "cp /bin/sleep busy; ./busy 60 >/dev/null 2>&1 & mkfifo pipe"})
			require.NoError(t, s.Upload(ctx, back, "busy"))
			_, stdout, _ = osbRun(t, s, core.ExecRequest{Command: "cat busy"})
			assert.Equal(t, "hi", strings.TrimSpace(stdout))
			begun := time.Now()
			assert.Equal(t, core.KindInvalid, core.KindOf(s.Download(ctx, "pipe", back)))
			assert.Less(t, time.Since(begun), 15*time.Second)
			assert.Equal(t, core.KindInvalid, core.KindOf(s.Download(ctx, ".", back)))
			long := strings.Repeat("it's long ", 30_000)
			res, stdout, _ := osbRun(t, s, core.ExecRequest{Command: "printf %s '" + strings.ReplaceAll(long, "'", `'"'"'`) + "' | wc -c", User: "65534", Cwd: "/tmp"})
			assert.Equal(t, core.ExecResult{}, res)
			assert.Equal(t, "300000", strings.TrimSpace(stdout))
		})
	}
}

// Requests to the server and to daemons tell whose span they belong to.
func TestOpenSandboxRequestsCarryTheCallersSpan(t *testing.T) {
	const span = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, blocks := range osbModes {
		t.Run(name, func(t *testing.T) {
			server := startStandin(t)
			s := osbBox(t, server, blocks, core.Spec{})
			before := len(server.Requests("", "/"))
			ctx, cancel := context.WithTimeout(core.WithTraceparent(context.Background(), span), osbSoon)
			defer cancel()
			_, err := s.Exec(ctx, core.ExecRequest{Command: "true"}, core.Discard)
			require.NoError(t, err)
			_, err = s.Exec(ctx, core.ExecRequest{Command: "true", KeepBackground: true}, core.Discard)
			require.NoError(t, err)
			local := filepath.Join(t.TempDir(), "f")
			require.NoError(t, os.WriteFile(local, nil, 0o600))
			require.NoError(t, s.Upload(ctx, local, "f"))
			_, err = s.Status(ctx)
			require.NoError(t, err)
			asked := server.Requests("", "/")[before:]
			assert.Greater(t, len(asked), 4)
			for _, r := range asked {
				assert.Equal(t, span, r.Header.Get("traceparent"), "%s %s", r.Method, r.Path)
			}
		})
	}
}
