package opensandbox

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const wireSoon = 20 * time.Second

// perform makes the recorded request with the operation that makes it here, and checks what the operation makes of the answer.
func (r *wireReplay) perform() {
	ctx, cancel := context.WithTimeout(r.t.Context(), wireSoon)
	defer cancel()
	route := route(r.e)
	for _, hand := range byHand {
		if hand.is(r.e) {
			hand.shows.Store(true)
			r.sendByHand(ctx)
			return
		}
	}
	switch {
	case r.e.daemon:
		r.performOnDaemon(ctx, route)
	default:
		r.performOnServer(ctx, route)
	}
}

// sendByHand makes a request as it was recorded.
func (r *wireReplay) sendByHand(ctx context.Context) {
	e := r.e
	c := call{method: e.Method, url: r.i.p.rest.base + e.path, header: http.Header{}}
	if e.daemon {
		c.url = r.i.at.url + e.path
	}
	if e.query != "" {
		c.url += "?" + e.query
	}
	for name, value := range e.header {
		if n := http.CanonicalHeaderKey(name); n != "Content-Length" && n != "Host" && n != "Connection" && n != "Accept-Encoding" && n != "Open-Sandbox-Client-Ip" {
			c.header.Set(name, value)
		}
	}
	if e.request != "" {
		c.stream, c.length, c.contentType = strings.NewReader(e.request), int64(len(e.request)), c.header.Get("Content-Type")
	}
	var got []byte
	_, err := r.i.p.rest.do(ctx, c, &got)
	if r.outcome(err) {
		assert.Equal(r.t, e.body, string(got))
	}
}

func (r *wireReplay) performOnServer(ctx context.Context, route string) {
	t, e, rest := r.t, r.e, r.i.p.rest
	switch {
	case route == "POST /v1/sandboxes":
		info, err := rest.createSandbox(ctx, r.createBody(), wireSoon)
		if r.outcome(err) {
			r.sameSandbox(info)
		}
	case strings.HasSuffix(route, "/sandboxes") || strings.HasSuffix(route, "/snapshots"):
		r.list(ctx)
	case strings.Contains(route, "/endpoints/"):
		r.resolve(ctx)
	case strings.HasSuffix(route, "/pause"), strings.HasSuffix(route, "/resume"):
		r.outcome(rest.changeState(ctx, e.box, route[strings.LastIndex(route, "/")+1:]))
	case strings.HasSuffix(route, "/renew-expiration"):
		var body struct {
			ExpiresAt time.Time `json:"expiresAt"`
		}
		_ = json.Unmarshal([]byte(e.request), &body) // some are wrong on purpose
		r.outcome(rest.renewSandbox(ctx, e.box, body.ExpiresAt))
	case strings.HasSuffix(route, "/diagnostics/events"):
		text, err := rest.events(ctx, e.box)
		require.NoError(t, err)
		assert.Equal(t, strings.Contains(e.body, "OOMKilled"), outOfMemory(text))
	case e.Method == http.MethodDelete && strings.HasPrefix(e.path, "/v1/snapshots/"):
		err := r.i.p.Reap(ctx, snapshotPrefix+strings.TrimPrefix(e.path, "/v1/snapshots/"))
		if e.status == http.StatusConflict {
			assert.Equal(t, core.KindConflict, core.KindOf(err), "%v", err)
			return
		}
		require.NoError(t, err) // also when it is gone
	case e.Method == http.MethodDelete:
		require.NoError(t, r.i.Destroy(ctx)) // also when it is gone
	case e.Method == http.MethodGet && strings.HasPrefix(e.path, "/v1/sandboxes/"):
		r.status(ctx)
	default:
		t.Errorf("no operation for %s", route)
	}
}

// createBody says a recorded request again, as far as a spec can say it.
func (r *wireReplay) createBody() *createBody {
	var b struct {
		Image          *struct{ URI string }
		SnapshotID     *string
		Entrypoint     []string
		Timeout        *float64
		ResourceLimits map[string]string
		Env, Metadata  map[string]string
		Extensions     map[string]any
		NetworkPolicy  map[string]any
		Platform       map[string]any
		Volumes        []any
	}
	_ = json.Unmarshal([]byte(r.e.request), &b) // some are wrong on purpose
	o := map[string]any{"extensions": b.Extensions, "platform": b.Platform, "volumes": b.Volumes}
	if b.NetworkPolicy != nil {
		o["network_policy"] = b.NetworkPolicy
	}
	spec := core.Spec{Env: b.Env, Metadata: b.Metadata, Entrypoint: b.Entrypoint, ProviderOptions: o}
	if b.Image != nil {
		spec.Image = b.Image.URI
	} else if b.SnapshotID != nil {
		o["snapshot_id"] = *b.SnapshotID
	}
	if b.Timeout != nil {
		spec.TTL = seconds(*b.Timeout)
	}
	spec.Resources.CPU, _ = strconv.ParseFloat(b.ResourceLimits["cpu"], 64)
	number := func(key, unit string) int {
		n, _ := strconv.Atoi(strings.TrimSuffix(b.ResourceLimits[key], unit))
		return max(n, 0)
	}
	spec.Resources.MemoryMiB, spec.Resources.DiskGiB, spec.Resources.GPU = number("memory", "Mi"), number("ephemeral-storage", "Gi"), number("gpu", "")
	spec.Resources.GPUType = b.ResourceLimits["gpu_type"]
	given, err := readOptions(spec.ProviderOptions)
	if err == nil {
		var body *createBody
		if body, err = newCreateBody(&r.i.p.cfg, spec, given); err == nil {
			return body
		}
	}
	// It is refused here already.
	assert.Equal(r.t, core.KindInvalid, core.KindOf(err), "%v", err)
	body, err := newCreateBody(&r.i.p.cfg, core.Spec{Image: "lab/debian:1"}, options{})
	require.NoError(r.t, err)
	return body
}

func (r *wireReplay) sameSandbox(info sandboxInfo) {
	r.t.Helper()
	var want sandboxInfo
	require.NoError(r.t, json.Unmarshal([]byte(r.e.body), &want))
	assert.Equal(r.t, want, info)
	assert.NotEmpty(r.t, info.ID)
	assert.NotEqual(r.t, core.StatusUnknown, info.Status.status(), info.Status.State)
}

// status asks for a sandbox as its user does.
func (r *wireReplay) status(ctx context.Context) {
	got, err := r.i.Status(ctx)
	require.NoError(r.t, err)
	if r.e.status == http.StatusNotFound {
		assert.Equal(r.t, core.StatusStopped, got)
		return
	}
	var body struct{ Status struct{ State string } }
	require.NoError(r.t, json.Unmarshal([]byte(r.e.body), &body))
	want, ok := map[string]core.Status{"Running": core.StatusRunning, "Paused": core.StatusPaused, "Terminated": core.StatusStopped, "Failed": core.StatusError}[body.Status.State]
	require.True(r.t, ok, body.Status.State)
	assert.Equal(r.t, want, got)
}

// list reads a list whose first page is the recorded one.
func (r *wireReplay) list(ctx context.Context) {
	asked := false
	r.also = func(w http.ResponseWriter, _ *http.Request) bool {
		again := asked
		asked = true
		if again {
			_, _ = io.WriteString(w, `{"items":[],"pagination":{"hasNextPage":false}}`)
		}
		return again
	}
	all, err := r.i.p.listAll(ctx, strings.TrimPrefix(r.e.path, "/v1"))
	if !r.outcome(err) {
		return
	}
	assert.Equal(r.t, "page=1&pageSize=100", r.sent.URL.RawQuery)
	var body struct {
		Items []struct {
			ID     string
			Status sandboxStatus
		}
	}
	require.NoError(r.t, json.Unmarshal([]byte(r.e.body), &body))
	require.Len(r.t, all, len(body.Items))
	for n, one := range all {
		assert.Equal(r.t, body.Items[n].ID, one.ID)
		assert.Equal(r.t, body.Items[n].Status, one.Status)
		assert.False(r.t, one.CreatedAt.IsZero())
	}
}

func (r *wireReplay) resolve(ctx context.Context) {
	q, err := url.ParseQuery(r.e.query)
	require.NoError(r.t, err)
	c := r.i.p.cfg.Connection
	c.UseServerProxy = q.Get("use_server_proxy") == "true"
	port, _ := strconv.Atoi(r.e.path[strings.LastIndex(r.e.path, "/")+1:]) // one is none on purpose
	at, err := r.i.p.rest.resolve(ctx, &c, r.e.box, port)
	if !r.outcome(err) {
		return
	}
	var body struct{ Endpoint string }
	require.NoError(r.t, json.Unmarshal([]byte(r.e.body), &body))
	assert.Equal(r.t, "http://"+body.Endpoint, at.url)
	assert.Equal(r.t, c.UseServerProxy, at.header.Get(headerAPIKey) != "", "the key is the server's, and no sandbox's")
}
