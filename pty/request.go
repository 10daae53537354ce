package pty

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
	"github.com/nemo-gym/nemo_gym_sandbox/pty/internal/proto"
)

// statusError is an answer other than success.
type statusError struct {
	status int
	code   string
	text   string
}

func (e *statusError) Error() string { return fmt.Sprintf("with HTTP %d: %s", e.status, e.text) }

func isStatus(err error, status int, code string) bool {
	var se *statusError
	return errors.As(err, &se) && se.status == status && (code == "" || se.code == code)
}

// mayHeal tells whether a failed request may succeed when it is repeated.
func mayHeal(err error) bool {
	var g *goneError
	var se *statusError
	if !errors.As(err, &se) {
		return !errors.As(err, &g)
	}
	switch se.status {
	case http.StatusNotFound, http.StatusBadGateway, http.StatusServiceUnavailable:
		return se.code == ""
	}
	return false
}

// call makes a request, again after each of the waits as long as that may help.
func (c *Client) call(ctx context.Context, method, path string, in, out any, waits []time.Duration) (int, error) {
	for {
		status, err := c.once(ctx, method, path, in, out)
		if err == nil || len(waits) == 0 || ctx.Err() != nil || !mayHeal(err) {
			return status, err
		}
		if derr := c.gone(ctx); derr != nil {
			return status, derr
		}
		if !sleep(ctx, waits[0]) {
			return status, err
		}
		waits = waits[1:]
	}
}

func (c *Client) once(ctx context.Context, method, path string, in, out any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, c.request())
	defer cancel()
	ctx, answered := c.watched(ctx)
	defer answered()
	status, err := c.roundTrip(ctx, method, path, in, out)
	var g *goneError
	if err != nil && errors.As(context.Cause(ctx), &g) {
		err = g
	}
	return status, err
}

// watched gives a context that ends when Silent knows why the server does not answer. answered ends the watch.
func (c *Client) watched(ctx context.Context) (watched context.Context, answered func()) {
	if c.Silent == nil {
		return ctx, func() {}
	}
	watched, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		for sleep(watched, c.t().answer) {
			if err := c.Silent(watched); err != nil {
				cancel(&goneError{err})
			}
		}
	})
	return watched, func() { cancel(nil); watching.Wait() }
}

func (c *Client) roundTrip(ctx context.Context, method, path string, in, out any) (int, error) {
	var body io.Reader
	if in != nil {
		p, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(p)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.URL+path, body)
	if err != nil {
		return 0, err
	}
	req.Header = c.header(ctx)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	// A connection for each request: they are rare, and none is left behind.
	t := &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}
	if c.Dial != nil {
		t.Proxy = nil
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) }
	}
	defer t.CloseIdleConnections()
	res, err := t.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	p, err := io.ReadAll(io.LimitReader(res.Body, proto.MaxControl))
	if err != nil {
		return res.StatusCode, err
	}
	if res.StatusCode/100 != 2 {
		return res.StatusCode, answerError(res.StatusCode, p)
	}
	if out != nil {
		if err := json.Unmarshal(p, out); err != nil {
			return res.StatusCode, fmt.Errorf("the server's answer makes no sense: %w", err)
		}
	}
	return res.StatusCode, nil
}

// header is what goes with every request, and the span for which it is made.
func (c *Client) header(ctx context.Context) http.Header {
	h := c.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	if parent := core.Traceparent(ctx); parent != "" {
		h.Set("traceparent", parent)
	}
	return h
}

func answerError(status int, body []byte) error {
	e := &statusError{status: status, text: clip(string(body))}
	var f proto.Failure
	// The first JSON value counts: some servers send two.
	if json.NewDecoder(bytes.NewReader(body)).Decode(&f) == nil && f.Code != "" {
		e.code, e.text = f.Code, clip(f.Code+": "+f.Message)
	}
	return e
}
