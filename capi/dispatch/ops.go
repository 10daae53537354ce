package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// The operation codes; part of the ABI (ngs.h).
const (
	opNoop          uint32 = 0
	opProviderClose uint32 = 2
	opCreate        uint32 = 3
	opConnect       uint32 = 4
	opExec          uint32 = 5
	opUpload        uint32 = 6
	opDownload      uint32 = 7
	opStatus        uint32 = 8
	opStop          uint32 = 9
	opSerialize     uint32 = 10
	opDisconnect    uint32 = 11
	opPause         uint32 = 12
	opResume        uint32 = 13
	opEndpoint      uint32 = 14
	opSetDefaults   uint32 = 15
	opProviderNew   uint32 = 1
	opPTYOpen       uint32 = 20
	opPTYAttach     uint32 = 21
	opPTYResize     uint32 = 22
	opPTYSignal     uint32 = 23
	opPTYWait       uint32 = 24
	opPTYDetach     uint32 = 25
	opPTYReattach   uint32 = 26
	opPTYInfo       uint32 = 27
	opPTYClose      uint32 = 28
	opPTYDial       uint32 = 29
	opList          uint32 = 32
	opReap          uint32 = 33
	opExamine       uint32 = 34
	opTest          uint32 = 1000
)

var handlers map[uint32]handler

// A package variable that names functions which read it would be a cycle; this is where it is filled.
func init() {
	handlers = map[uint32]handler{
		opNoop:          func(*operation, []byte) (reply, error) { return reply{}, nil },
		opProviderNew:   providerNew,
		opProviderClose: providerClose,
		opCreate:        on(create),
		opConnect:       on(connect),
		opExec:          on(execute),
		opUpload:        on(upload),
		opDownload:      on(download),
		opStatus:        on(status),
		opStop:          onSandbox(func(s *core.Sandbox, o *operation) error { return s.Stop(o.ctx) }),
		opSerialize:     on(serialize),
		opDisconnect:    onSandbox(func(s *core.Sandbox, _ *operation) error { return s.Disconnect() }),
		opPause:         onSandbox(pause),
		opResume:        onSandbox(resume),
		opEndpoint:      on(endpoint),
		opSetDefaults:   on(setDefaults),
		opPTYOpen:       on(ptyOpen),
		opPTYAttach:     on(ptyAttach),
		opPTYResize:     on(ptyResize),
		opPTYSignal:     on(ptySignal),
		opPTYWait:       on(ptyWait),
		opPTYDetach:     onTerminal((*terminal).detach),
		opPTYReattach:   onTerminal((*terminal).reattach),
		opPTYInfo:       onTerminal(func(*terminal, context.Context) error { return nil }),
		opPTYClose:      ptyClose,
		opPTYDial:       on(ptyDial),
		opList:          on(list),
		opReap:          on(reap),
		opExamine:       on(examine),
		opTest:          provoke,
	}
}

func decode(req []byte, into any) error {
	if err := json.Unmarshal(req, into); err != nil {
		return core.Errorf(core.KindInvalid, "", "the request is not understood: %w", core.Mistyped(err))
	}
	return nil
}

func answer(v any) (reply, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return reply{}, core.Errorf(core.KindInternal, "", "the answer can't be encoded: %w", err)
	}
	return reply{payload: raw, flags: FlagJSON}, nil
}

type newProviderRequest struct {
	Name   string          `json:"name"`
	Config json.RawMessage `json:"config"`
}

type providerReply struct {
	Provider Handle `json:"provider"`
}

func providerNew(o *operation, req []byte) (reply, error) {
	var r newProviderRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	h, err := o.bridge.lib.NewProvider(r.Name, r.Config)
	if err != nil {
		return reply{}, err
	}
	rep, err := answer(providerReply{Provider: h})
	rep.undo = func() { o.bridge.lib.Release(h) }
	return rep, err
}

func providerClose(o *operation, req []byte) (reply, error) {
	var r providerRef
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	p, err := r.find(o)
	if err != nil { // closed already
		return reply{}, nil
	}
	if err := p.Close(o.ctx); err != nil {
		return reply{}, core.WithSandbox(err, core.KindSandbox, "close", p.Name(), "")
	}
	o.bridge.lib.table.remove(r.Provider)
	return reply{}, nil
}

type createRequest struct {
	providerRef
	Spec specRequest `json:"spec"`
}

type sandboxReply struct {
	Sandbox Handle `json:"sandbox"`
	ID      string `json:"id"`
	Retries int64  `json:"retries,omitempty"` // attempts that failed before
}

func create(o *operation, p core.Provider, r createRequest) (reply, error) {
	spec, err := r.Spec.spec()
	if err != nil {
		return reply{}, core.WithSandbox(err, core.KindInvalid, "create", p.Name(), "")
	}
	s := core.NewSandbox(p, spec, core.WithLedger(o.bridge.lib.ledger))
	ctx, retries := core.WithRetries(o.ctx)
	if err := s.Start(ctx); err != nil {
		if o.ctx.Err() != nil {
			err = &core.Error{Kind: core.KindCanceled, Op: "create", Provider: p.Name(), Err: err}
		}
		return reply{}, &retriedError{err, retries.Load()}
	}
	undo := func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(o.ctx), undoTimeout)
		defer cancel()
		_ = s.Stop(ctx) // the caller has gone
	}
	// A cancellation that came when the backend was done already: its caller expects that there is nothing.
	if o.ctx.Err() != nil {
		undo()
		return reply{}, core.Errorf(core.KindCanceled, "create", "%w", context.Cause(o.ctx))
	}
	return o.keep(s, undo, retries.Load())
}

// keep gives a sandbox its handle.
func (o *operation) keep(s *core.Sandbox, undo func(), retries int64) (reply, error) {
	table := &o.bridge.lib.table
	h := table.add(tagSandbox, s)
	if h == 0 {
		undo()
		return reply{}, core.Errorf(core.KindInternal, "", "too many objects are open")
	}
	rep, err := answer(sandboxReply{Sandbox: h, ID: s.ID(), Retries: retries})
	rep.undo = func() {
		table.remove(h)
		undo()
	}
	return rep, err
}

type connectRequest struct {
	providerRef
	Descriptor map[string]any `json:"descriptor"`
}

func connect(o *operation, p core.Provider, r connectRequest) (reply, error) {
	s, err := core.Connect(o.ctx, p, r.Descriptor, core.WithLedger(o.bridge.lib.ledger))
	if err != nil {
		return reply{}, err
	}
	return o.keep(s, s.Release, 0)
}

// onSandbox is the handler of an operation that needs a sandbox and answers nothing.
func onSandbox(do func(*core.Sandbox, *operation) error) handler {
	return on(func(o *operation, s *core.Sandbox, _ sandboxRef) (reply, error) { return reply{}, do(s, o) })
}

type fileRequest struct {
	sandboxRef
	Local   string `json:"local"`
	Remote  string `json:"remote"`
	Sidecar string `json:"sidecar"` // download from there
}

func upload(o *operation, s *core.Sandbox, r fileRequest) (reply, error) {
	return reply{}, s.Upload(o.ctx, r.Local, r.Remote)
}

func download(o *operation, s *core.Sandbox, r fileRequest) (reply, error) {
	if r.Sidecar != "" {
		return reply{}, s.SidecarDownload(o.ctx, r.Sidecar, r.Remote, r.Local)
	}
	return reply{}, s.Download(o.ctx, r.Remote, r.Local)
}

type statusReply struct {
	Status core.Status `json:"status"`
}

func status(o *operation, s *core.Sandbox, _ sandboxRef) (reply, error) {
	st, err := s.Status(o.ctx)
	if err != nil {
		return reply{}, err
	}
	return answer(statusReply{Status: st})
}

type serializeRequest struct {
	sandboxRef
	Scope string `json:"scope"`
}

func serialize(o *operation, s *core.Sandbox, r serializeRequest) (reply, error) {
	d, err := s.Serialize(o.ctx, r.Scope)
	if err != nil {
		return reply{}, err
	}
	return answer(d)
}

type endpointRequest struct {
	sandboxRef
	Port   int  `json:"port"`
	Direct bool `json:"direct"` // as other sandboxes reach it
}

type endpointReply struct {
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers"`
}

// directResolver is a provider that knows where a port is reached past what stands between its sandboxes and this host.
type directResolver interface {
	DirectEndpoint(ctx context.Context, id string, port int) (core.Endpoint, error)
}

func resolveEndpoint(ctx context.Context, s *core.Sandbox, r endpointRequest) (core.Endpoint, error) {
	if !r.Direct {
		return s.Endpoint(ctx, r.Port)
	}
	d, ok := s.Provider().(directResolver)
	if !ok {
		return core.Endpoint{}, core.Errorf(core.KindNotSupported, "endpoint", "provider %s knows no direct way to ports", s.Provider().Name())
	}
	return d.DirectEndpoint(ctx, s.ID(), r.Port)
}

func endpoint(o *operation, s *core.Sandbox, r endpointRequest) (reply, error) {
	ep, err := resolveEndpoint(o.ctx, s, r)
	if err != nil {
		return reply{}, err
	}
	return answer(endpointReply{URL: ep.URL, Headers: ep.Headers})
}

// defaultsRequest changes what is present; "" goes back to the sandbox's own.
type defaultsRequest struct {
	sandboxRef
	User    *string `json:"user"`
	Workdir *string `json:"workdir"`
}

func setDefaults(o *operation, s *core.Sandbox, r defaultsRequest) (reply, error) {
	if r.User != nil {
		s.SetDefaultUser(*r.User)
	}
	if r.Workdir != nil {
		s.SetDefaultWorkdir(*r.Workdir)
	}
	return reply{}, nil
}

type testRequest struct {
	What string `json:"what"`
}

// provoke is for tests of the border: it needs NGS_TEST_HOOKS=1.
func provoke(o *operation, req []byte) (reply, error) {
	var r testRequest
	if err := decode(req, &r); err != nil {
		return reply{}, err
	}
	switch r.What {
	case "panic":
		panic("asked to")
	case "nil":
		var s *core.Error
		return reply{}, errors.New(string(s.Kind))
	case "wait": // until cancelled
		<-o.ctx.Done()
		return reply{}, o.ctx.Err()
	case "stubborn": // does not care that it is cancelled
		time.Sleep(time.Minute)
	}
	return reply{}, core.Errorf(core.KindInvalid, "test", "what is %q?", r.What)
}
