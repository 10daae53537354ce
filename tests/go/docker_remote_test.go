package tests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// certificates fills a folder as docker wants it (ca.pem, cert.pem, key.pem), and gives what a server needs.
func certificates(t *testing.T) (dir string, server *tls.Config) {
	dir = t.TempDir()
	issue := func(serial int64, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey, *x509.Certificate) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		require.NoError(t, err)
		c := &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "lab"},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: parent == nil,
		}
		if parent == nil {
			parent, parentKey = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
		require.NoError(t, err)
		return der, key, c
	}
	write := func(name, kind string, der []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	}
	caDER, caKey, ca := issue(1, nil, nil)
	clientDER, clientKey, _ := issue(2, ca, caKey)
	serverDER, serverKey, _ := issue(3, ca, caKey)
	keyDER, err := x509.MarshalECPrivateKey(clientKey)
	require.NoError(t, err)
	write("ca.pem", "CERTIFICATE", caDER)
	write("cert.pem", "CERTIFICATE", clientDER)
	write("key.pem", "EC PRIVATE KEY", keyDER)
	pool := x509.NewCertPool()
	parsed, err := x509.ParseCertificate(caDER)
	require.NoError(t, err)
	pool.AddCert(parsed)
	return dir, &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{serverDER}, PrivateKey: serverKey}},
		ClientCAs:    pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// forward serves the engine's socket at another address until the test ends.
func forward(t *testing.T, l net.Listener) {
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer near.Close()
				far, err := net.Dial("unix", "/var/run/docker.sock")
				if err != nil {
					return
				}
				defer far.Close()
				var both sync.WaitGroup
				both.Go(func() {
					_, _ = io.Copy(far, near)
					_ = far.(*net.UnixConn).CloseWrite()
				})
				both.Go(func() {
					_, _ = io.Copy(near, far)
					_ = near.(interface{ CloseWrite() error }).CloseWrite()
				})
				both.Wait()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
}

// Over TLS the streams of commands take the same way as all requests.
func TestDockerOverTLS(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	dir, server := certificates(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", server)
	require.NoError(t, err)
	forward(t, l)
	host := "tcp://" + l.Addr().String()
	for name, cfg := range map[string]settings{"engine": dockerWays["engine"], "stream": dockerWays["stream"]} {
		cfg := with(cfg, "connection", settings{"host": host, "cert_path": dir, "tls_verify": true})
		sb := begin(t, newDocker(t, cfg), core.Spec{Image: tag})
		assert.Equal(t, "hi\n", shell(t, sb, core.ExecRequest{Command: "echo hi"}), name)
	}
	t.Setenv("DOCKER_HOST", host)
	_, err = tryBegin(t, newDocker(t, nil), core.Spec{Image: tag})
	require.Error(t, err, "without a certificate")
	t.Setenv("DOCKER_CERT_PATH", dir)
	t.Setenv("DOCKER_TLS_VERIFY", "1")
	begin(t, newDocker(t, nil), core.Spec{Image: tag})
}

func TestDockerOverSSH(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	bin := t.TempDir()
	// What an ssh client would start on the other machine is started here.
	script := "#!/bin/sh\nfor command; do :; done\nexec sh -c \"$command\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "ssh"), []byte(script), 0o755))
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	sb := begin(t, newDocker(t, with(dockerWays["stream"], "connection", settings{"host": "ssh://me@lab.invalid"})), core.Spec{Image: tag})
	assert.Equal(t, "hi\n", shell(t, sb, core.ExecRequest{Command: "echo hi"}))
}

// An engine that goes away for a while is no result of a command, and comes back.
func TestDockerEngineThatGoesAway(t *testing.T) {
	ownState(t)
	tag := ownTag(t, testImage)
	path := filepath.Join(t.TempDir(), "engine.sock")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	gate := &cut{Listener: l}
	forward(t, gate)
	for name, cfg := range map[string]settings{"engine": dockerWays["engine"], "socket": dockerWays["socket"]} {
		t.Run(name, func(t *testing.T) {
			sb := begin(t, newDocker(t, with(cfg, "connection", settings{"host": "unix://" + path})), core.Spec{Image: tag})
			over := started(t, sb, core.ExecRequest{Command: "echo up; sleep 3; echo down", Timeout: 30 * time.Second})
			gate.set(true)
			st, err := sb.Status(t.Context())
			require.NoError(t, err)
			assert.Equal(t, core.StatusUnknown, st)
			res := soon(t, over, 15*time.Second)
			if name == "engine" {
				assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType, "%+v", res)
				assert.Contains(t, res.Reason, "engine")
				_, res = try(t, sb, core.ExecRequest{Command: "echo hi", Timeout: 5 * time.Second})
				assert.Equal(t, core.ErrorTypeSandbox, res.ErrorType)
			} else {
				assert.Equal(t, core.ExecResult{}, res, "the agent needs no engine")
			}
			gate.set(false)
			assert.Equal(t, "hi\n", shell(t, sb, core.ExecRequest{Command: "echo hi"}))
		})
	}
}

// cut is a listener that can drop all its connections and refuse new ones.
type cut struct {
	net.Listener
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

func (c *cut) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		if !c.down {
			c.conns = append(c.conns, conn)
			c.mu.Unlock()
			return conn, nil
		}
		c.mu.Unlock()
		_ = conn.Close()
	}
}

func (c *cut) set(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
	if down {
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.conns = nil
	}
}
