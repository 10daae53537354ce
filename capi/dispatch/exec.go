package dispatch

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"math"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// inlineOutput is how much of each collected output comes inside the result's event; a larger one is read as a stream.
const inlineOutput = 32 << 10

// What is done with an output.
const (
	collect = "collect" // kept, and part of the result
	follow  = "stream"  // read by the host as it arrives
	discard = "discard"
)

// execRequest is one command. Outputs are collected unless they say otherwise.
type execRequest struct {
	sandboxRef
	Command        string            `json:"command"`
	Argv           []string          `json:"argv"`
	Cwd            string            `json:"cwd"`
	Env            map[string]string `json:"env"`
	User           string            `json:"user"`
	TimeoutS       *float64          `json:"timeout_s"` // absent: the provider's default; -1: none
	Stdout         string            `json:"stdout"`
	Stderr         string            `json:"stderr"`
	Stdin          bool              `json:"stdin"` // the host will write the command's input
	KeepBackground bool              `json:"keep_background"`
	Sidecar        string            `json:"sidecar"` // run there instead of in the sandbox itself
}

// execReply is the JSON in a result's event. Inline outputs follow it, stdout first.
type execReply struct {
	ExitCode  int          `json:"exit_code"`
	ErrorType string       `json:"error_type,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	Stdout    *outputReply `json:"stdout,omitempty"`
	Stderr    *outputReply `json:"stderr,omitempty"`
}

// outputReply describes one collected output: Len bytes, inline unless Stream names where to read them.
type outputReply struct {
	Len     int64  `json:"len"`
	ASCII   bool   `json:"ascii"`
	Omitted int64  `json:"omitted,omitempty"`
	Stream  Handle `json:"stream,omitempty"`
}

func duration(seconds float64) (time.Duration, error) {
	switch {
	case seconds == -1, seconds >= float64(math.MaxInt64)/float64(time.Second):
		return core.Forever, nil
	case seconds > 0:
		return max(time.Duration(seconds*float64(time.Second)), 1), nil
	default:
		return 0, core.Errorf(core.KindInvalid, "exec", "timeout_s must be positive, got %g", seconds)
	}
}

// outputs routes a command's two outputs. It implements core.Sink.
type outputs struct {
	collector *core.Collector
	rings     [2]*outRing
	modes     [2]string
}

func (s *outputs) Write(st core.Stream, p []byte) error {
	switch s.modes[st] {
	case collect:
		return s.collector.Write(st, p)
	case follow:
		return s.rings[st].Write(p)
	default:
		return nil
	}
}

func execute(o *operation, s *core.Sandbox, r execRequest) (reply, error) {
	er := core.ExecRequest{
		Command: r.Command, Argv: r.Argv, Cwd: r.Cwd, Env: r.Env, User: r.User, KeepBackground: r.KeepBackground,
	}
	if r.TimeoutS != nil {
		limit, err := duration(*r.TimeoutS)
		if err != nil {
			return reply{}, err
		}
		er.Timeout = limit
	}
	var limit int64
	if l, ok := s.Provider().(core.OutputLimiter); ok {
		limit = l.MaxOutputBytes()
	}
	sink := &outputs{collector: core.NewCollector(limit), modes: [2]string{r.Stdout, r.Stderr}}
	release, err := o.openStreams(&r, sink, &er)
	if err != nil {
		sink.collector.Close()
		return reply{}, err
	}
	res, err := func() (core.ExecResult, error) {
		defer release()
		if r.Sidecar != "" {
			return s.SidecarExec(o.ctx, r.Sidecar, er, sink)
		}
		return s.Exec(o.ctx, er, sink)
	}()
	if err != nil {
		sink.collector.Close()
		if o.ctx.Err() != nil {
			err = &core.Error{Kind: core.KindCanceled, Op: "exec", Provider: s.Provider().Name(), SandboxID: s.ID(), Err: err}
		}
		return reply{}, err
	}
	return o.execReply(res, sink)
}

// openStreams makes the streams that the host asked for. The function that it gives ends the command's side of them.
func (o *operation) openStreams(r *execRequest, sink *outputs, er *core.ExecRequest) (func(), error) {
	var ends []func()
	release := func() {
		for _, end := range ends {
			end()
		}
	}
	for i, mode := range sink.modes {
		switch mode {
		case "":
			sink.modes[i] = collect
		case collect, discard:
		case follow:
			ring := newOutRing(ringSize)
			prepare := func(h Handle) { ring.edge = func() { o.bridge.edge(h, EventReadable) } }
			if _, err := o.bridge.openStream(o, ring, prepare, true, uint32(i)+1); err != nil {
				release()
				return nil, err
			}
			sink.rings[i] = ring
			stop := context.AfterFunc(o.ctx, ring.abort)
			ends = append(ends, func() { stop(); ring.end(nil) })
		default:
			release()
			return nil, core.Errorf(core.KindInvalid, "exec", "an output is %q, %q or %q, not %q", collect, follow, discard, mode)
		}
	}
	if r.Stdin {
		ring := newInRing()
		prepare := func(h Handle) { ring.edge = func() { o.bridge.edge(h, EventWritable) } }
		if _, err := o.bridge.openStream(o, ring, prepare, true, 0); err != nil {
			release()
			return nil, err
		}
		stop := context.AfterFunc(o.ctx, ring.stop)
		ends = append(ends, func() { stop(); ring.stop() })
		er.Stdin = ring
	}
	return release, nil
}

// execReply puts a result into its event. What is too large for that stays where it is and gets a stream.
func (o *operation) execReply(res core.ExecResult, sink *outputs) (reply, error) {
	meta := execReply{ExitCode: res.ExitCode, ErrorType: res.ErrorType, Reason: clip(res.Reason, inlineOutput/8)}
	var inline []byte
	for i, into := range []**outputReply{&meta.Stdout, &meta.Stderr} {
		if sink.modes[i] != collect {
			continue
		}
		out := sink.collector.Output(core.Stream(i))
		about := &outputReply{Len: out.Len(), ASCII: out.ASCII(), Omitted: out.Omitted()}
		*into = about
		if about.Len <= inlineOutput {
			room := len(inline)
			inline = append(inline, make([]byte, about.Len)...)
			out.Next(inline[room:])
			continue
		}
		h, err := o.bridge.openStream(o, collected{out}, func(Handle) {}, false, 0)
		if err != nil {
			sink.collector.Close()
			return reply{}, core.Errorf(core.KindInternal, "exec", "the output can't be handed over: %w", err)
		}
		about.Stream = h
	}
	raw, err := json.Marshal(meta)
	if err != nil {
		return reply{}, core.Errorf(core.KindInternal, "exec", "the result can't be encoded: %w", err)
	}
	payload := binary.LittleEndian.AppendUint32(make([]byte, 0, 4+len(raw)+len(inline)), uint32(len(raw)))
	payload = append(append(payload, raw...), inline...)
	return reply{payload: payload, flags: FlagFramed, aux: uint32(res.ExitCode), undo: sink.collector.Close}, nil
}
