package opensandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	// descriptorID is the key of a sandbox's description; nothing else is needed.
	descriptorID = "sandbox_id"
	// defaultsFile keeps the defaults that a sandbox was serialized with, in the sandbox.
	defaultsFile = "/opt/opensandbox/nemo-gym-sandbox.json"
	// spareFile does where the image's user, as whom the daemon runs then, may not write there.
	spareFile   = "~/.nemo-gym-sandbox.json"
	maxDefaults = 64 << 10
)

type keptDefaults struct {
	User    string `json:"user"`
	Workdir string `json:"workdir"`
}

// Serialize implements core.Connector.
func (p *Provider) Serialize(ctx context.Context, in core.Instance, _ string, defaults core.Defaults) (map[string]any, error) {
	i, ok := in.(*instance)
	if !ok {
		return nil, core.Errorf(core.KindInvalid, "serialize", "the sandbox is not one of provider %s", providerName)
	}
	if err := i.healthy(); err != nil {
		return nil, err
	}
	i.mu.Lock()
	again := i.hasNote
	i.mu.Unlock()
	if again || defaults != (core.Defaults{}) {
		text, err := json.Marshal(keptDefaults(defaults))
		if err != nil {
			return nil, err
		}
		err = i.note(ctx, text, defaultsFile)
		var api *apiError
		if errors.As(err, &api) && api.isLasting() {
			err = i.note(ctx, text, spareFile)
		}
		if errors.As(err, &api) && api.isLasting() {
			// The sandbox can be shared all the same. Such a daemon can run nothing as somebody else anyway.
			quietly(ctx, "a sandbox has no place for its defaults: whoever connects to it has to name user and directory", err)
			return map[string]any{descriptorID: i.id}, nil
		}
		if err != nil {
			return nil, failed(ctx, "serialize", i.id, "keeping the sandbox's defaults in it", err)
		}
		i.mu.Lock()
		i.hasNote = true
		i.mu.Unlock()
	}
	return map[string]any{descriptorID: i.id}, nil
}

// note writes the defaults into a file of the sandbox, which is the daemon's and not the default user's.
func (i *instance) note(ctx context.Context, text []byte, name string) error {
	return i.ops().retry(ctx, "writing a file to sandbox "+i.id, func(ctx context.Context) error {
		at, err := i.daemon(ctx)
		if err != nil {
			return err
		}
		own := &instance{p: i.p, id: i.id, at: &at}
		return own.store(ctx, bytes.NewReader(text), int64(len(text)), 0o644, name, false)
	})
}

// Connect implements core.Connector.
func (p *Provider) Connect(ctx context.Context, descriptor map[string]any) (core.Instance, core.Defaults, error) {
	id, _ := descriptor[descriptorID].(string)
	if id == "" {
		return nil, core.Defaults{}, core.Errorf(core.KindInvalid, "connect", "connect requires a %s in the descriptor", descriptorID)
	}
	i := p.newInstance(id)
	short, cancel := bounded(ctx, seconds(p.cfg.Create.ConnectAttemptTimeoutS), "connecting to sandbox "+id)
	defer cancel()
	d, err := i.takeUp(short)
	if err != nil {
		i.Detach()
		return nil, core.Defaults{}, failed(ctx, "connect", id, "connecting to the sandbox", err)
	}
	return i, d, nil
}

// takeUp finds out where a sandbox's daemon is, that it works, and what its defaults are.
func (i *instance) takeUp(ctx context.Context) (core.Defaults, error) {
	if err := i.awaitEndpoint(ctx); err != nil {
		return core.Defaults{}, err
	}
	if !i.p.cfg.Create.SkipHealthCheck {
		info, err := i.p.rest.getSandbox(ctx, i.id, 0)
		switch {
		case err != nil:
			return core.Defaults{}, err
		case info.Status.dead():
			return core.Defaults{}, core.Errorf(core.KindSandbox, "", "Sandbox is dead. OpenSandbox status: %s", info.Status)
		case info.Status.status() == core.StatusPaused:
			i.setPaused(true)
			return core.Defaults{}, nil // there is nobody to ask
		}
		if err := i.awaitDaemon(ctx, seconds(i.p.cfg.Create.ConnectPollS)); err != nil {
			return core.Defaults{}, err
		}
	}
	kept, err := i.noted(ctx, defaultsFile)
	there := statusOf(err) != http.StatusNotFound
	if !there {
		kept, err = i.noted(ctx, spareFile)
		var no *apiError // it is not there, or its user has no home for it to be in
		there = !errors.As(err, &no) || no.status != http.StatusNotFound && no.status != http.StatusBadRequest && no.code != codeRuntime
	}
	switch {
	case !there:
	case err != nil:
		return core.Defaults{}, fmt.Errorf("reading the sandbox's defaults: %w", err)
	default:
		i.kept, i.hasNote = core.Defaults(kept), true
	}
	return i.kept, nil
}

// noted reads the defaults from a file of the sandbox.
func (i *instance) noted(ctx context.Context, name string) (kept keptDefaults, err error) {
	var text bytes.Buffer
	if err = i.read(ctx, name, &limited{w: &text, left: maxDefaults}); err == nil {
		err = json.Unmarshal(text.Bytes(), &kept)
	}
	return kept, err
}

// limited takes no more than the daemon is trusted with.
type limited struct {
	w    *bytes.Buffer
	left int
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, fmt.Errorf("it is longer than %d bytes", maxDefaults)
	}
	l.left -= len(p)
	return l.w.Write(p)
}
