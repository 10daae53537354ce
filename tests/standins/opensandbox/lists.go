package opensandbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// saved is a snapshot. One that a sandbox runs from can't be deleted.
type saved struct {
	id, box, name string
	created       time.Time
}

// Snapshots lists those there are, oldest first.
func (s *Server) Snapshots() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, one := range s.saved {
		all = append(all, one.id)
	}
	return all
}

// list gives the sandboxes, newest first.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	var boxes []*box
	for _, id := range slices.Backward(s.order) {
		boxes = append(boxes, s.boxes[id])
	}
	s.mu.Unlock()
	var items []any
	for _, b := range boxes {
		items = append(items, s.describe(b))
	}
	page(w, r, items)
}

// page answers with a part of a list.
func page(w http.ResponseWriter, r *http.Request, items []any) {
	at, size := 1, 20
	for name, n := range map[string]*int{"page": &at, "pageSize": &size} {
		if text := r.URL.Query().Get(name); text != "" {
			v, err := strconv.Atoi(text)
			if err != nil || v < 1 || name == "pageSize" && v > 200 {
				invalid(w, name, "Input should be greater than or equal to 1")
				return
			}
			*n = v
		}
	}
	first := min((at-1)*size, len(items))
	last := min(first+size, len(items))
	reply(w, http.StatusOK, map[string]any{
		"items":      append([]any{}, items[first:last]...),
		"pagination": map[string]any{"page": at, "pageSize": size, "totalItems": len(items), "totalPages": (len(items) + size - 1) / size, "hasNextPage": last < len(items)},
	})
}

func (one *saved) describe() map[string]any {
	return map[string]any{
		"id": one.id, "sandboxId": one.box, "name": one.name, "createdAt": one.created.UTC().Format(time.RFC3339Nano),
		"status": map[string]string{"state": "Ready", "reason": "snapshot_runtime_ready", "message": "Docker snapshot image created successfully."},
	}
}

// snapshot makes one of a sandbox.
func (s *Server) snapshot(w http.ResponseWriter, r *http.Request, b *box) {
	var body struct {
		Name string `json:"name"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body) // it may be missing
	s.mu.Lock()
	s.made++
	one := &saved{id: fmt.Sprintf("00000000-0000-4000-a000-%012d", s.made), box: b.id, name: body.Name, created: time.Now()}
	s.saved = append(s.saved, one)
	s.mu.Unlock()
	w.Header().Set("Location", "/v1/snapshots/"+one.id)
	reply(w, http.StatusAccepted, one.describe())
}

func (s *Server) snapshotRoutes(w http.ResponseWriter, r *http.Request, parts []string) {
	if len(parts) == 1 && r.Method == http.MethodGet {
		s.mu.Lock()
		var items []any
		for _, one := range s.saved {
			items = append(items, one.describe())
		}
		s.mu.Unlock()
		page(w, r, items)
		return
	}
	if len(parts) != 2 || r.Method != http.MethodDelete {
		reply(w, http.StatusNotFound, map[string]string{"detail": "Not Found"})
		return
	}
	id := parts[1]
	s.mu.Lock()
	defer s.mu.Unlock()
	n := slices.IndexFunc(s.saved, func(one *saved) bool { return one.id == id })
	used := false
	for _, b := range s.boxes {
		used = used || b.snapshot == id
	}
	switch {
	case n < 0:
		fail(w, http.StatusNotFound, "SNAPSHOT::NOT_FOUND", "Snapshot "+strings.TrimSpace(id)+" not found")
	case used:
		fail(w, http.StatusConflict, "SNAPSHOT::DELETE_CONFLICT", "snapshot image cannot be deleted due to a conflict")
	default:
		s.saved = slices.Delete(s.saved, n, n+1)
		w.WriteHeader(http.StatusNoContent)
	}
}
