// Package relay carries many streams over one: a client that reaches the
// sandbox only through an engine's exec speaks yamux over it, and the relay
// opens a socket of the agent for every stream.
package relay

import (
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"golang.org/x/sys/unix"
)

// Config is both sides' setting of the multiplexer.
func Config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.MaxStreamWindowSize = 1 << 20 // one round trip to a remote engine carries this much
	c.EnableKeepAlive = true
	c.KeepAliveInterval = 15 * time.Second
	c.ConnectionWriteTimeout = 30 * time.Second
	c.StreamCloseTimeout = 10 * time.Second
	c.LogOutput = io.Discard
	return c
}

// Run serves streams until the client leaves.
func Run(in io.ReadCloser, out io.WriteCloser, socket string) error {
	sess, err := yamux.Server(stdio{in, out}, Config())
	if err != nil {
		return fmt.Errorf("begin multiplexing: %w", err)
	}
	defer sess.Close()
	for {
		st, err := sess.AcceptStream()
		if err != nil {
			return nil // the client has gone, which is how a relay ends
		}
		go join(st, socket)
	}
}

// join connects one stream with the agent until one of them ends.
func join(st *yamux.Stream, socket string) {
	defer st.Close()
	c, err := dial(socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, "reach the agent:", err)
		return
	}
	defer c.Close()
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		_, _ = io.Copy(c, st)
		_ = c.(*net.UnixConn).CloseWrite()
	}()
	go func() {
		defer wg.Done()
		_, _ = io.Copy(st, c)
		_ = st.Close()
	}()
	wg.Wait()
}

// dial goes through a descriptor: the path may be longer than an address can hold.
func dial(socket string) (net.Conn, error) {
	fd, err := unix.Open(socket, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

// stdio makes one stream of a process's input and output.
type stdio struct {
	io.ReadCloser
	w io.WriteCloser
}

func (s stdio) Write(p []byte) (int, error) { return s.w.Write(p) }

func (s stdio) Close() error {
	err := s.ReadCloser.Close()
	if werr := s.w.Close(); err == nil {
		err = werr
	}
	return err
}
