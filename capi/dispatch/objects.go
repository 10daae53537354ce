package dispatch

import "github.com/nemo-gym/nemo_gym_sandbox/core"

// A request names the object that it is about in one field, which it has by embedding one of these.
type (
	providerRef struct {
		Provider Handle `json:"provider"`
	}
	sandboxRef struct {
		Sandbox Handle `json:"sandbox"`
	}
	terminalRef struct {
		Terminal Handle `json:"terminal"`
	}
)

func (r providerRef) find(o *operation) (core.Provider, error) {
	if p, ok := lookup[core.Provider](&o.bridge.lib.table, r.Provider); ok {
		return p, nil
	}
	return nil, core.Errorf(core.KindClosed, "", "%w", errNoProvider)
}

func (r sandboxRef) find(o *operation) (*core.Sandbox, error) {
	if s, ok := lookup[*core.Sandbox](&o.bridge.lib.table, r.Sandbox); ok {
		return s, nil
	}
	return nil, core.Errorf(core.KindClosed, "", "the sandbox's handle is no longer valid")
}

func (r terminalRef) find(o *operation) (*terminal, error) {
	if t, ok := lookup[*terminal](&o.bridge.lib.table, r.Terminal); ok {
		return t, nil
	}
	return nil, core.Errorf(core.KindPTY, "pty", "the session is closed")
}

// about is a request on an object of kind T.
type about[T any] interface {
	find(o *operation) (T, error)
}

// on is the handler of an operation on one object: the request is decoded and its object found before do sees them.
func on[T any, R about[T]](do func(o *operation, object T, r R) (reply, error)) handler {
	return func(o *operation, req []byte) (reply, error) {
		var r R
		if err := decode(req, &r); err != nil {
			return reply{}, err
		}
		object, err := r.find(o)
		if err != nil {
			return reply{}, err
		}
		return do(o, object, r)
	}
}
