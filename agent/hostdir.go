package agent

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

const (
	socketName    = "agent.sock"
	tokenName     = "token"
	runName       = "run"
	signatureName = "owner.json"
)

// HostDir is a sandbox's folder on this host. Its parent is closed to other
// users; the run folder in it is mounted into the sandbox and holds the agent's
// socket. What is in the run folder is the sandbox's to change and never trusted.
type HostDir struct {
	Path  string // mode 0700
	Token []byte // the secret that client and agent share
}

// NewHostDir makes the folder of a new sandbox.
func NewHostDir(id string) (*HostDir, error) {
	path, err := hostPath(id)
	if err != nil {
		return nil, err
	}
	d := &HostDir{Path: path, Token: make([]byte, TokenLen)}
	if _, err := rand.Read(d.Token); err != nil {
		return nil, err
	}
	if err := d.fill(); err != nil {
		_ = d.Remove()
		return nil, fmt.Errorf("make the sandbox's folder: %w", err)
	}
	return d, nil
}

func (d *HostDir) fill() error {
	if err := os.MkdirAll(d.Path, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(d.RunDir(), 0o777); err != nil {
		return err
	}
	// Past the umask: the agent may be another user of this host, where user ids are mapped.
	if err := os.Chmod(d.RunDir(), 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(d.Path, tokenName), d.Token, 0o600); err != nil {
		return err
	}
	inside := filepath.Join(d.RunDir(), tokenName)
	if err := os.WriteFile(inside, d.Token, 0o600); err != nil {
		return err
	}
	return os.Chmod(inside, 0o644)
}

// OpenHostDir finds the folder of a sandbox that another process started.
func OpenHostDir(id string) (*HostDir, error) {
	path, err := hostPath(id)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(filepath.Join(path, tokenName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, core.Errorf(core.KindNotFound, "connect", "no sandbox %s of this user on this host", id)
	}
	if err != nil {
		return nil, fmt.Errorf("read the sandbox's token: %w", err)
	}
	if len(token) != TokenLen {
		return nil, core.Errorf(core.KindInternal, "connect", "the token of sandbox %s is damaged", id)
	}
	return &HostDir{Path: path, Token: token}, nil
}

func hostPath(id string) (string, error) {
	if id == "" || strings.ContainsAny(id, "/\x00") || strings.HasPrefix(id, ".") {
		return "", core.Errorf(core.KindInvalid, "", "%q is not a sandbox id", id)
	}
	state, err := core.StateDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "s", id), nil
}

// RunDir is the folder to mount into the sandbox.
func (d *HostDir) RunDir() string { return filepath.Join(d.Path, runName) }

// SocketName is the socket's name in RunDir.
func (d *HostDir) SocketName() string { return socketName }

// TokenName is the name in RunDir of the file that the agent reads and unlinks.
func (d *HostDir) TokenName() string { return tokenName }

// Dial connects to the agent. The sandbox may have put anything in the socket's
// place: no link is followed, and only a socket is connected to.
func (d *HostDir) Dial(ctx context.Context) (net.Conn, error) {
	fd, err := unix.Open(filepath.Join(d.RunDir(), socketName), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the agent's socket: %w", err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("look at the agent's socket: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return nil, errors.New("what is in the place of the agent's socket is not a socket")
	}
	var dialer net.Dialer
	// Also keeps the address short, whatever the folder's path is.
	return dialer.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

// Seal closes the run folder after the first handshake: from then on nobody but
// root can put something else in the socket's place.
func (d *HostDir) Seal() error { return os.Chmod(d.RunDir(), 0o555) }

// Remove removes the folder. Idempotent.
func (d *HostDir) Remove() error {
	_ = os.Chmod(d.RunDir(), 0o700)
	if err := os.RemoveAll(d.Path); err != nil {
		return fmt.Errorf("remove the sandbox's folder: %w", err)
	}
	return nil
}

// Signature tells others whose a folder is, so that they can clear it away when its owner is dead and nothing of the
// sandbox is left where it ran.
type Signature struct {
	Owner    core.Owner `json:"owner"`
	Provider string     `json:"provider"`
	Location string     `json:"location"` // of the provider's backend
}

// Sign writes the signature.
func (d *HostDir) Sign(s Signature) error {
	raw, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(filepath.Join(d.Path, signatureName), raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("sign the sandbox's folder: %w", err)
	}
	return nil
}

// Signed is a sandbox's folder that was signed.
type Signed struct {
	ID string
	Signature
	Made time.Time
	Dir  *HostDir // without its token
}

// SignedHostDirs lists the folders of this user's sandboxes that are signed.
func SignedHostDirs() ([]Signed, error) {
	state, err := core.StateDir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(state, "s"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look through the sandboxes' folders: %w", err)
	}
	var found []Signed
	for _, e := range entries {
		path := filepath.Join(state, "s", e.Name())
		file := filepath.Join(path, signatureName)
		st, err := os.Stat(file)
		if err != nil {
			continue // not signed, or removed meanwhile
		}
		raw, err := os.ReadFile(file)
		s := Signed{ID: e.Name(), Made: st.ModTime(), Dir: &HostDir{Path: path}}
		if err != nil || json.Unmarshal(raw, &s.Signature) != nil {
			continue // its owner was killed while it signed, or it is removed at this moment
		}
		found = append(found, s)
	}
	return found, nil
}
