package docker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
)

// engine is what the provider asks of a container engine. This file is the only
// one that knows the client library, which can so be exchanged.
//
// Every call ends soon after its context. Errors can be told apart with notFound,
// conflict and unreachable.
type engine interface {
	Version(ctx context.Context) (engineVersion, error)
	ImageInspect(ctx context.Context, ref string) (image.InspectResponse, error)
	// ImagePull starts a pull; its progress is read as JSON messages, the end of which is the end of the pull.
	ImagePull(ctx context.Context, ref, platform, auth string) (io.ReadCloser, error)
	ContainerCreate(ctx context.Context, name string, c containerSpec) error
	ContainerStart(ctx context.Context, name string) error
	ContainerInspect(ctx context.Context, name string) (container.InspectResponse, error)
	// ContainerExit gives a channel with the code of the container's next end, asked for before it starts.
	ContainerExit(ctx context.Context, name string) <-chan int64
	ContainerRemove(ctx context.Context, name string) error
	// ContainerList gives the containers in any state that have a label.
	ContainerList(ctx context.Context, label string) ([]container.Summary, error)
	ContainerPause(ctx context.Context, name string) error
	ContainerUnpause(ctx context.Context, name string) error
	ExecCreate(ctx context.Context, name string, o container.ExecOptions) (string, error)
	// ExecAttach starts a created exec; the stream is multiplexed and outlives ctx.
	ExecAttach(ctx context.Context, id string) (*execStream, error)
	ExecInspect(ctx context.Context, id string) (container.ExecInspect, error)
	CopyTo(ctx context.Context, name, dir string, tar io.Reader) error
	CopyFrom(ctx context.Context, name, path string) (io.ReadCloser, error)
	VolumeCreate(ctx context.Context, name string, labels map[string]string) error
	VolumeRemove(ctx context.Context, name string) error
	Close() error
}

// containerSpec is everything that a container is made from.
type containerSpec struct {
	Config   *container.Config
	Host     *container.HostConfig
	Network  *network.NetworkingConfig
	Platform *ocispec.Platform
}

// engineVersion is what an engine says of itself.
type engineVersion struct {
	Version, API, OS, Arch string
}

// execStream is the stream of a running exec. Writes go to its stdin.
type execStream struct {
	conn       net.Conn
	r          io.Reader
	closeWrite func() error
	once       sync.Once
}

func (s *execStream) Read(p []byte) (int, error)  { return s.r.Read(p) }
func (s *execStream) Write(p []byte) (int, error) { return s.conn.Write(p) }

// CloseWrite ends the exec's stdin.
func (s *execStream) CloseWrite() error { return s.closeWrite() }

// Close drops the stream; the exec goes on. Idempotent.
func (s *execStream) Close() error {
	var err error
	s.once.Do(func() { err = s.conn.Close() })
	return err
}

func notFound(err error) bool { return errdefs.IsNotFound(err) }
func conflict(err error) bool { return errdefs.IsConflict(err) }

// unreachable tells whether the engine could not be asked at all.
func unreachable(err error) bool {
	return client.IsErrConnectionFailed(err) || errors.Is(err, io.ErrUnexpectedEOF)
}

// moby is the engine behind Docker's client library.
type moby struct {
	c         *client.Client
	transport *http.Transport
}

// connKey marks a context whose connection is wanted by its opener; see ExecAttach.
type connKey struct{}

const (
	idleConns = 6
	idleFor   = 2 * time.Second
)

// newEngine prepares a client. It contacts nobody.
func newEngine(t target) (engine, error) {
	// As many idle connections as commands that usually run at once; more are opened and dropped.
	// One that a request gives back after Close is idle for this long. Without MaxIdleConns the client's options would
	// put half a minute in its place.
	transport := &http.Transport{MaxIdleConns: idleConns, MaxIdleConnsPerHost: idleConns, IdleConnTimeout: idleFor, DisableCompression: true}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := t.dial(ctx)
		if hold, ok := ctx.Value(connKey{}).(*heldConn); ok && err == nil {
			hold.set(conn)
		}
		return conn, err
	}
	c, err := client.NewClientWithOpts(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}),
		client.WithHost(t.url),
		client.WithDialContext(dial),
		client.WithScheme("http"), // TLS, where wanted, is done by dial
		client.WithVersion(t.apiVersion),
		client.WithAPIVersionNegotiation(),
		// The one request that this does not reach is the upgrade which starts an exec.
		client.WithTraceOptions(otelhttp.WithPropagators(traceparent{})),
	)
	if err != nil {
		return nil, err
	}
	// Streams of commands can't go through an HTTP proxy, so nothing does.
	transport.Proxy = nil
	return &moby{c: c, transport: transport}, nil
}

func (m *moby) Version(ctx context.Context) (engineVersion, error) {
	v, err := m.c.ServerVersion(ctx)
	if err != nil {
		return engineVersion{}, err
	}
	return engineVersion{Version: v.Version, API: m.c.ClientVersion(), OS: v.Os, Arch: v.Arch}, nil
}

func (m *moby) ImageInspect(ctx context.Context, ref string) (image.InspectResponse, error) {
	return m.c.ImageInspect(ctx, ref)
}

func (m *moby) ImagePull(ctx context.Context, ref, platform, auth string) (io.ReadCloser, error) {
	return m.c.ImagePull(ctx, ref, image.PullOptions{Platform: platform, RegistryAuth: auth})
}

func (m *moby) ContainerCreate(ctx context.Context, name string, s containerSpec) error {
	_, err := m.c.ContainerCreate(ctx, s.Config, s.Host, s.Network, s.Platform, name)
	return err
}

func (m *moby) ContainerStart(ctx context.Context, name string) error {
	return m.c.ContainerStart(ctx, name, container.StartOptions{})
}

func (m *moby) ContainerInspect(ctx context.Context, name string) (container.InspectResponse, error) {
	return m.c.ContainerInspect(ctx, name)
}

func (m *moby) ContainerExit(ctx context.Context, name string) <-chan int64 {
	code := make(chan int64, 1)
	result, failed := m.c.ContainerWait(ctx, name, container.WaitConditionNextExit)
	go func() { // ends with ctx, which both channels follow
		select {
		case r := <-result:
			code <- r.StatusCode
		case <-failed:
		}
		close(code)
	}()
	return code
}

func (m *moby) ContainerRemove(ctx context.Context, name string) error {
	return m.c.ContainerRemove(ctx, name, container.RemoveOptions{Force: true, RemoveVolumes: true})
}

func (m *moby) ContainerList(ctx context.Context, label string) ([]container.Summary, error) {
	return m.c.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", label))})
}

func (m *moby) ContainerPause(ctx context.Context, name string) error {
	return m.c.ContainerPause(ctx, name)
}

func (m *moby) ContainerUnpause(ctx context.Context, name string) error {
	return m.c.ContainerUnpause(ctx, name)
}

func (m *moby) ExecCreate(ctx context.Context, name string, o container.ExecOptions) (string, error) {
	r, err := m.c.ContainerExecCreate(ctx, name, o)
	return r.ID, err
}

// ExecAttach watches ctx itself: the client library reads the answer to an
// upgraded request without looking at it, and an engine that hangs would hold the caller.
func (m *moby) ExecAttach(ctx context.Context, id string) (*execStream, error) {
	hold := &heldConn{}
	stop := context.AfterFunc(ctx, hold.close)
	h, err := m.c.ContainerExecAttach(context.WithValue(ctx, connKey{}, hold), id, container.ExecAttachOptions{})
	if !stop() {
		if err == nil {
			h.Close()
		}
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &execStream{conn: h.Conn, r: h.Reader, closeWrite: h.CloseWrite}, nil
}

func (m *moby) ExecInspect(ctx context.Context, id string) (container.ExecInspect, error) {
	return m.c.ContainerExecInspect(ctx, id)
}

func (m *moby) CopyTo(ctx context.Context, name, dir string, tar io.Reader) error {
	return m.c.CopyToContainer(ctx, name, dir, tar, container.CopyToContainerOptions{})
}

func (m *moby) CopyFrom(ctx context.Context, name, path string) (io.ReadCloser, error) {
	r, _, err := m.c.CopyFromContainer(ctx, name, path)
	return r, err
}

func (m *moby) VolumeCreate(ctx context.Context, name string, labels map[string]string) error {
	_, err := m.c.VolumeCreate(ctx, volume.CreateOptions{Name: name, Labels: labels})
	return err
}

func (m *moby) VolumeRemove(ctx context.Context, name string) error {
	return m.c.VolumeRemove(ctx, name, false)
}

func (m *moby) Close() error {
	m.transport.CloseIdleConnections()
	return m.c.Close()
}

// heldConn is a connection that can be closed before its opener has it.
type heldConn struct {
	mu     sync.Mutex
	conn   net.Conn
	closed bool
}

func (h *heldConn) set(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conn = c
	if h.closed {
		_ = c.Close()
	}
}

func (h *heldConn) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	if h.conn != nil {
		_ = h.conn.Close()
	}
}
