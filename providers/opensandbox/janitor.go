package opensandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

var (
	_ core.Janitor = (*Provider)(nil)
	_ core.Located = (*Provider)(nil)
)

const (
	// listPage is how many are asked for at once.
	listPage = 100
	// mostPages bounds a listing whose end a server does not find.
	mostPages = 10_000
	// listTimeout bounds each request of those who clear up.
	listTimeout = 30 * time.Second
	// snapshotPrefix marks the names of snapshots among those of sandboxes.
	snapshotPrefix = "snapshot/"
)

// Location implements core.Located.
func (p *Provider) Location() string { return p.rest.base }

// Label is the form in which the name of a run or user is kept.
func (p *Provider) Label(name string) string { return labelValue(name) }

// listed is what servers tell in a list of sandboxes or snapshots.
type listed struct {
	ID        string            `json:"id"`
	SandboxID string            `json:"sandboxId"`
	Status    sandboxStatus     `json:"status"`
	Metadata  map[string]string `json:"metadata"`
	CreatedAt time.Time         `json:"createdAt"`
	ExpiresAt time.Time         `json:"expiresAt"`
}

// List implements core.Janitor: all sandboxes, with the run and the user that their labels tell, and all snapshots, with
// those of the sandbox that they were made of.
func (p *Provider) List(ctx context.Context) ([]core.Found, error) {
	boxes, err := p.listAll(ctx, "/sandboxes")
	if err != nil {
		return nil, err
	}
	snapshots, err := p.listAll(ctx, "/snapshots")
	if err != nil && statusOf(err) != http.StatusNotFound { // a server without them
		return nil, err
	}
	prefix := p.cfg.Attribution.KeyPrefix
	owners := map[string]core.Found{}
	var all []core.Found
	for _, b := range boxes {
		f := core.Found{ID: b.ID, Provider: providerName, OwnerState: core.OwnerUnknown, Created: b.CreatedAt, Expires: b.ExpiresAt,
			Status: b.Status.status(), User: b.Metadata[prefix+"user"]}
		f.Owner.Run = b.Metadata[prefix+"run"]
		owners[b.ID] = f
		all = append(all, f)
	}
	for _, s := range snapshots {
		f := core.Found{ID: snapshotPrefix + s.ID, Provider: providerName, OwnerState: core.OwnerUnknown, Created: s.CreatedAt,
			Status: core.StatusStopped, Leftover: true, User: owners[s.SandboxID].User}
		f.Owner.Run = owners[s.SandboxID].Owner.Run
		all = append(all, f)
	}
	return all, nil
}

// listAll reads a list to its end. An answer that is not understood is no empty list.
func (p *Provider) listAll(ctx context.Context, path string) ([]listed, error) {
	var all []listed
	seen := map[string]bool{} // what is made meanwhile moves the others to later pages
	for page := 1; page <= mostPages; page++ {
		var answer struct {
			Items      *[]json.RawMessage `json:"items"`
			Pagination *struct {
				More *bool `json:"hasNextPage"`
			} `json:"pagination"`
		}
		if err := p.rest.server(ctx, http.MethodGet, fmt.Sprintf("%s?page=%d&pageSize=%d", path, page, listPage), nil, &answer, listTimeout); err != nil {
			return nil, fmt.Errorf("listing %s: %w", path, err)
		}
		if answer.Items == nil || answer.Pagination == nil || answer.Pagination.More == nil {
			return nil, core.Errorf(core.KindInvalid, "list", "the server's answer to GET %s makes no sense: it needs items, and pagination with hasNextPage", path)
		}
		for _, raw := range *answer.Items {
			var one listed
			if err := json.Unmarshal(raw, &one); err != nil || one.ID == "" {
				return nil, core.Errorf(core.KindInvalid, "list", "the server's answer to GET %s makes no sense: it lists something without an id, or of another kind", path)
			}
			if !seen[one.ID] {
				seen[one.ID] = true
				all = append(all, one)
			}
		}
		if !*answer.Pagination.More {
			return all, nil
		}
	}
	return nil, core.Errorf(core.KindInvalid, "list", "the list at GET %s has no end", path)
}

// Reap implements core.Janitor.
func (p *Provider) Reap(ctx context.Context, id string) error {
	path := sandboxPath(id)
	if name, ok := strings.CutPrefix(id, snapshotPrefix); ok {
		path = "/snapshots/" + url.PathEscape(name)
	}
	again := backoff{retries: p.cfg.Operations.Retries, first: seconds(p.cfg.Operations.RetryDelayS), limit: seconds(p.cfg.Operations.RetryMaxDelayS),
		again: func(err error) bool { return statusOf(err) != http.StatusConflict && mayHeal(err) }} // who is in its way is not here
	err := again.retry(ctx, "deleting "+id, func(ctx context.Context) error {
		err := p.rest.server(ctx, http.MethodDelete, path, nil, nil, listTimeout)
		var e *apiError
		if errors.As(err, &e) && e.status == http.StatusNotFound {
			return nil
		}
		return err
	})
	return failed(ctx, "reap", id, "deleting it", err)
}
