package opensandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// daemonPort is where daemons listen in sandboxes.
const daemonPort = 44772

// servePublic is the server's own port: the REST service, and the proxy.
func (s *Server) servePublic(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/v1")
	if id, rest, ok := strings.Cut(strings.TrimPrefix(path, "/sandboxes/"), "/proxy/"); ok && strings.HasPrefix(path, "/sandboxes/") {
		_, inner, _ := strings.Cut(rest, "/")
		s.toDaemon(w, r, id, "/"+inner, false)
		return
	}
	s.serve(w, r, Request{Path: r.URL.Path}, http.HandlerFunc(s.lifecycle))
}

func (s *Server) lifecycle(w http.ResponseWriter, r *http.Request) {
	switch r.Header.Get(keyHeader) {
	case Key:
	case "":
		fail(w, http.StatusUnauthorized, "MISSING_API_KEY", "Authentication credentials are missing. Provide API key via OPEN-SANDBOX-API-KEY header.")
		return
	default:
		fail(w, http.StatusUnauthorized, "INVALID_API_KEY", "Authentication credentials are invalid. Check your API key and try again.")
		return
	}
	parts := strings.Split(strings.Trim(strings.TrimPrefix(r.URL.Path, "/v1"), "/"), "/")
	if parts[0] == "snapshots" {
		s.snapshotRoutes(w, r, parts)
		return
	}
	if parts[0] != "sandboxes" {
		reply(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
		return
	}
	if len(parts) == 1 && r.Method == http.MethodPost {
		s.create(w, r)
		return
	}
	if len(parts) == 1 && r.Method == http.MethodGet {
		s.list(w, r)
		return
	}
	if len(parts) < 2 {
		reply(w, http.StatusMethodNotAllowed, map[string]string{"detail": "Method Not Allowed"})
		return
	}
	id := parts[1]
	s.mu.Lock()
	b := s.boxes[id]
	s.mu.Unlock()
	if b == nil {
		fail(w, http.StatusNotFound, "DOCKER::SANDBOX_NOT_FOUND", "Sandbox "+id+" not found.")
		return
	}
	switch key := r.Method + " " + strings.Join(parts[2:min(len(parts), 3)], ""); key {
	case "GET ":
		reply(w, http.StatusOK, s.describe(b))
	case "DELETE ":
		s.remove(b)
		w.WriteHeader(http.StatusNoContent)
	case "GET endpoints":
		s.endpoint(w, r, b, parts)
	case "POST pause":
		s.change(w, b, "Running", "Paused", "CONTAINER_PAUSED", "DOCKER::SANDBOX_NOT_RUNNING", "Sandbox is not in a running state.")
	case "POST resume":
		s.change(w, b, "Paused", "Running", "CONTAINER_RUNNING", "DOCKER::SANDBOX_NOT_PAUSED", "Sandbox is not in a paused state.")
	case "POST renew-expiration":
		s.renew(w, r, b)
	case "PATCH metadata":
		s.label(w, r, b)
	case "POST snapshots":
		s.snapshot(w, r, b)
	case "GET diagnostics":
		s.mu.Lock()
		content := b.events
		s.mu.Unlock()
		reply(w, http.StatusOK, map[string]string{"sandboxId": id, "kind": "events", "content": content})
	default:
		reply(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
	}
}

func (s *Server) describe(b *box) map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := map[string]any{
		"id":        b.id,
		"status":    map[string]string{"state": b.state, "reason": b.reason, "message": b.message, "lastTransitionAt": "1970-01-01T00:00:00Z"},
		"createdAt": b.created.UTC().Format(time.RFC3339Nano),
	}
	if len(b.metadata) > 0 {
		d["metadata"] = maps.Clone(b.metadata)
	}
	if b.image != "" {
		d["image"] = map[string]string{"uri": b.image}
	}
	if b.snapshot != "" {
		d["snapshotId"] = b.snapshot
	}
	if d["entrypoint"] = b.entrypoint; len(b.entrypoint) == 0 {
		d["entrypoint"] = []string{"tail", "-f", "/dev/null"}
	}
	if !b.expires.IsZero() {
		d["expiresAt"] = b.expires.UTC().Format(time.RFC3339Nano)
	}
	return d
}

// invalid is how the server tells of a request that it can't read.
func invalid(w http.ResponseWriter, field, message string) {
	reply(w, http.StatusUnprocessableEntity, map[string]any{"detail": []any{map[string]any{"type": "value_error", "loc": []string{"body", field}, "msg": message, "input": nil}}})
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Image *struct {
			URI string `json:"uri"`
		} `json:"image"`
		SnapshotID     string            `json:"snapshotId"`
		Entrypoint     []string          `json:"entrypoint"`
		Timeout        *int64            `json:"timeout"`
		ResourceLimits map[string]string `json:"resourceLimits"`
		Env            map[string]string `json:"env"`
		Metadata       map[string]string `json:"metadata"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		invalid(w, "body", "JSON decode error")
		return
	}
	switch {
	case (body.Image == nil) == (body.SnapshotID == ""):
		invalid(w, "image", "Value error, Exactly one of image or snapshotId must be provided.")
	case body.Image != nil && len(body.Entrypoint) == 0:
		invalid(w, "entrypoint", "List should have at least 1 item after validation, not 0")
	case body.Timeout != nil && *body.Timeout < 60:
		invalid(w, "timeout", "Input should be greater than or equal to 60")
	case body.ResourceLimits == nil:
		invalid(w, "resourceLimits", "Field required")
	default:
		var life time.Duration
		if body.Timeout != nil {
			life = time.Duration(*body.Timeout) * time.Second
		}
		b, err := s.newBox(body.SnapshotID, body.Metadata, body.Env, life)
		if err != nil {
			fail(w, http.StatusInternalServerError, "DOCKER::SANDBOX_START_FAILED", err.Error())
			return
		}
		s.mu.Lock()
		b.entrypoint = body.Entrypoint
		if body.Image != nil {
			b.image = body.Image.URI
		}
		s.mu.Unlock()
		d := s.describe(b)
		// Who made it knows what from.
		delete(d, "image")
		delete(d, "snapshotId")
		reply(w, http.StatusAccepted, d)
	}
}

// label changes a sandbox's metadata: null takes an entry away.
func (s *Server) label(w http.ResponseWriter, r *http.Request, b *box) {
	var patch map[string]*string
	if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
		invalid(w, "body", "JSON decode error")
		return
	}
	s.mu.Lock()
	changed := maps.Clone(b.metadata)
	if changed == nil {
		changed = map[string]string{}
	}
	for key, value := range patch {
		if value == nil {
			delete(changed, key)
		} else {
			changed[key] = *value
		}
	}
	b.metadata = changed
	s.mu.Unlock()
	reply(w, http.StatusOK, s.describe(b))
}

func (s *Server) remove(b *box) {
	s.mu.Lock()
	delete(s.boxes, b.id)
	for n, id := range s.order {
		if id == b.id {
			s.order = append(s.order[:n:n], s.order[n+1:]...)
			break
		}
	}
	s.mu.Unlock()
	b.end()
}

func (s *Server) endpoint(w http.ResponseWriter, r *http.Request, b *box, parts []string) {
	port := 0
	if len(parts) == 4 {
		port, _ = strconv.Atoi(parts[3])
	}
	switch {
	case port < 1 || port > 65535:
		fail(w, http.StatusBadRequest, "DOCKER::INVALID_PORT", "Port must be between 1 and 65535.")
	case r.URL.Query().Get("use_server_proxy") == "true":
		reply(w, http.StatusOK, map[string]string{"endpoint": fmt.Sprintf("%s/v1/sandboxes/%s/proxy/%d", r.Host, b.id, port)})
	case port == daemonPort:
		reply(w, http.StatusOK, map[string]string{"endpoint": strings.TrimPrefix(s.direct.URL, "http://") + "/box/" + b.id})
	default:
		reply(w, http.StatusOK, map[string]string{"endpoint": fmt.Sprintf("127.0.0.1:%d", port)})
	}
}

func (s *Server) change(w http.ResponseWriter, b *box, from, to, reason, code, message string) {
	s.mu.Lock()
	ok := b.state == from
	if ok {
		b.state, b.reason = to, reason
	}
	s.mu.Unlock()
	if !ok {
		fail(w, http.StatusConflict, code, message)
		return
	}
	b.daemon.freeze(to == "Paused")
	w.WriteHeader(http.StatusAccepted)
}

func (s *Server) renew(w http.ResponseWriter, r *http.Request, b *box) {
	var body struct {
		ExpiresAt time.Time `json:"expiresAt"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		invalid(w, "expiresAt", "Input should be a valid datetime")
		return
	}
	if body.ExpiresAt.Before(time.Now()) {
		fail(w, http.StatusBadRequest, "DOCKER::INVALID_EXPIRATION", "New expiration time must be in the future.")
		return
	}
	s.mu.Lock()
	b.expires = body.ExpiresAt
	s.mu.Unlock()
	reply(w, http.StatusOK, map[string]string{"expiresAt": body.ExpiresAt.Format(time.RFC3339Nano)})
}
