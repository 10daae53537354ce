package opensandbox

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// daemonPort is where execd listens in every sandbox.
const daemonPort = 44772

// sandboxInfo is what the server says of a sandbox.
type sandboxInfo struct {
	ID       string            `json:"id"`
	Status   sandboxStatus     `json:"status"`
	Metadata map[string]string `json:"metadata"`
}

type sandboxStatus struct {
	State   string `json:"state"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// String says what is known, for messages.
func (s sandboxStatus) String() string {
	return fmt.Sprintf("state=%s, reason=%s, message=%s", s.State, s.Reason, clip(s.Message, 500))
}

var statuses = map[string]core.Status{
	"active": core.StatusRunning, "ready": core.StatusRunning, "running": core.StatusRunning,
	"paused":   core.StatusPaused,
	"creating": core.StatusStarting, "initializing": core.StatusStarting, "pausing": core.StatusStarting,
	"pending": core.StatusStarting, "resuming": core.StatusStarting, "starting": core.StatusStarting,
	"completed": core.StatusStopped, "deleted": core.StatusStopped, "exited": core.StatusStopped,
	"stopped": core.StatusStopped, "terminated": core.StatusStopped,
	"crashed": core.StatusError, "error": core.StatusError, "failed": core.StatusError, "unhealthy": core.StatusError,
}

// status is the state in the project's words.
func (s sandboxStatus) status() core.Status {
	if known, ok := statuses[strings.ToLower(strings.TrimSpace(s.State))]; ok {
		return known
	}
	return core.StatusUnknown
}

// dead tells whether nothing runs in such a sandbox any more.
func (s sandboxStatus) dead() bool {
	st := s.status()
	return st == core.StatusStopped || st == core.StatusError
}

// server makes a request to the server itself, with the management key.
func (r *restClient) server(ctx context.Context, method, path string, body, out any, timeout time.Duration) error {
	_, err := r.do(ctx, call{method: method, url: r.base + "/v1" + path, header: r.serverHeader(), json: body, timeout: timeout}, out)
	return err
}

func (r *restClient) serverHeader() http.Header {
	h := http.Header{"Accept": {"*/*"}}
	if r.key != "" {
		h[http.CanonicalHeaderKey(headerAPIKey)] = []string{r.key}
	}
	return h
}

func sandboxPath(id string) string { return "/sandboxes/" + url.PathEscape(id) }

func (r *restClient) createSandbox(ctx context.Context, body *createBody, timeout time.Duration) (sandboxInfo, error) {
	var info sandboxInfo
	err := r.server(ctx, http.MethodPost, "/sandboxes", body, &info, timeout)
	if err == nil && info.ID == "" {
		err = fmt.Errorf("the server's answer names no sandbox")
	}
	return info, err
}

func (r *restClient) getSandbox(ctx context.Context, id string, timeout time.Duration) (sandboxInfo, error) {
	var info sandboxInfo
	err := r.server(ctx, http.MethodGet, sandboxPath(id), nil, &info, timeout)
	if err == nil && info.Status.State == "" {
		err = fmt.Errorf("the server's answer has no status")
	}
	return info, err
}

// deleteSandbox ends a sandbox; one that is gone already is success.
func (r *restClient) deleteSandbox(ctx context.Context, id string, timeout time.Duration) error {
	err := r.server(ctx, http.MethodDelete, sandboxPath(id), nil, nil, timeout)
	if sandboxGone(err) {
		return nil
	}
	return err
}

// renewSandbox moves the end of a sandbox's life.
func (r *restClient) renewSandbox(ctx context.Context, id string, until time.Time) error {
	body := map[string]string{"expiresAt": until.UTC().Format("2006-01-02T15:04:05.000000Z07:00")}
	return r.server(ctx, http.MethodPost, sandboxPath(id)+"/renew-expiration", body, nil, 0)
}

// changeState asks for a pause or its end; the state is polled for.
func (r *restClient) changeState(ctx context.Context, id, to string) error {
	return r.server(ctx, http.MethodPost, sandboxPath(id)+"/"+to, nil, nil, 0)
}

// events is what the server's runtime tells of a sandbox, as text.
func (r *restClient) events(ctx context.Context, id string) (string, error) {
	var answer struct {
		Content string `json:"content"`
	}
	err := r.server(ctx, http.MethodGet, sandboxPath(id)+"/diagnostics/events?scope=runtime", nil, &answer, 0)
	return answer.Content, err
}

// endpoint is where a port of a sandbox is reached.
type endpoint struct {
	url    string // no slash at the end
	header http.Header
}

// resolve asks where a port of a sandbox is reached. The management key goes with
// requests only when they go through the server.
func (r *restClient) resolve(ctx context.Context, c *connectionConfig, id string, port int) (endpoint, error) {
	path := sandboxPath(id) + "/endpoints/" + strconv.Itoa(port)
	if c.UseServerProxy {
		path += "?use_server_proxy=true"
	}
	var answer struct {
		Endpoint string            `json:"endpoint"`
		Headers  map[string]string `json:"headers"`
	}
	if err := r.server(ctx, http.MethodGet, path, nil, &answer, 0); err != nil {
		return endpoint{}, err
	}
	at := strings.TrimRight(strings.TrimSpace(answer.Endpoint), "/")
	if at == "" {
		return endpoint{}, fmt.Errorf("the server returned an empty endpoint for port %d", port)
	}
	if !strings.Contains(at, "://") {
		at = *c.Protocol + "://" + at
	}
	if u, err := url.Parse(at); err != nil || u.Host == "" {
		return endpoint{}, fmt.Errorf("the server returned an endpoint for port %d that is no URL", port)
	}
	e := endpoint{url: at, header: http.Header{}}
	if c.UseServerProxy && r.key != "" {
		e.header.Set(headerAPIKey, r.key)
	}
	for k, v := range answer.Headers {
		e.header.Set(k, v)
	}
	return e, nil
}
