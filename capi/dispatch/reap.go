package dispatch

import (
	"encoding/json"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

type listRequest struct {
	providerRef
	After string `json:"after"`
	Run   string `json:"run"`  // only those of this run; "" is any
	User  string `json:"user"` // only those of this user; "" is any
}

// labeler is a provider that keeps the names of runs and users in a form of its own.
type labeler interface {
	Label(name string) string
}

// wants tells whether a sandbox is one of those that are asked for.
func (r *listRequest) wants(p core.Provider, f core.Found) bool {
	is := func(asked, have string) bool {
		l, ok := p.(labeler)
		return asked == "" || asked == have || ok && l.Label(asked) == have
	}
	return f.ID > r.After && is(r.Run, f.Owner.Run) && is(r.User, f.User)
}

type foundReply struct {
	ID        string          `json:"sandbox_id"`
	Provider  string          `json:"provider"`
	Run       string          `json:"run"`
	User      string          `json:"user"`
	Host      string          `json:"host"`
	PID       int             `json:"pid"`
	Owner     core.OwnerState `json:"owner"`
	CreatedAt float64         `json:"created_at"`
	ExpiresAt float64         `json:"expires_at"`
	Status    core.Status     `json:"status"`
	Leftover  bool            `json:"leftover"`
	Kept      string          `json:"kept"`
}

type listReply struct {
	Sandboxes []json.RawMessage `json:"sandboxes"`
	More      bool              `json:"more"`
}

// pageSize keeps a page inside one event, with room for the rest of the answer.
const pageSize = MaxEvent / 2

func list(o *operation, p core.Provider, r listRequest) (reply, error) {
	found, err := core.Survey(o.ctx, p)
	if err != nil {
		return reply{}, err
	}
	page := listReply{Sandboxes: []json.RawMessage{}}
	size := 0
	for _, f := range found {
		if !r.wants(p, f) {
			continue
		}
		raw, err := json.Marshal(foundReply{
			ID: f.ID, Provider: f.Provider, Run: f.Owner.Run, User: f.User, Host: f.Owner.Host, PID: f.Owner.PID, Owner: f.OwnerState,
			CreatedAt: unixSeconds(f.Created), ExpiresAt: unixSeconds(f.Expires), Status: f.Status, Leftover: f.Leftover, Kept: f.Kept,
		})
		if err != nil {
			return reply{}, core.Errorf(core.KindInternal, "list", "the answer can't be encoded: %w", err)
		}
		if size += len(raw); size > pageSize && len(page.Sandboxes) > 0 {
			page.More = true
			break
		}
		page.Sandboxes = append(page.Sandboxes, raw)
	}
	return answer(page)
}

func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

type reapRequest struct {
	providerRef
	ID string `json:"id"`
}

func reap(o *operation, p core.Provider, r reapRequest) (reply, error) {
	if r.ID == "" {
		return reply{}, core.Tidy(o.ctx, p)
	}
	return reply{}, core.Reap(o.ctx, p, r.ID)
}

type factReply struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Origin  string `json:"origin"`
	Problem string `json:"problem"`
}

type examineReply struct {
	Facts []factReply `json:"facts"`
}

func examine(o *operation, p core.Provider, _ providerRef) (reply, error) {
	rep := examineReply{Facts: []factReply{}}
	for _, f := range core.Examine(o.ctx, p) {
		rep.Facts = append(rep.Facts, factReply(f))
	}
	return answer(rep)
}
