package agent

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

//go:embed all:dist
var dist embed.FS

// binary is one unpacked agent.
type binary struct {
	once sync.Once
	data []byte
	hash string
	err  error
}

// binaries is filled per architecture; mu guards the map only.
var binaries = struct {
	mu sync.Mutex
	m  map[string]*binary
}{m: map[string]*binary{}}

func load(arch string) *binary {
	binaries.mu.Lock()
	b := binaries.m[arch]
	if b == nil {
		b = &binary{}
		binaries.m[arch] = b
	}
	binaries.mu.Unlock()
	b.once.Do(func() {
		name := "dist/ngs-agent-linux-" + arch + ".gz"
		packed, err := dist.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			b.err = core.Errorf(core.KindNotSupported, "", "this build holds no agent for linux/%s; run \"./build.sh agent\" and build again", arch)
			return
		}
		if err == nil {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(packed)); err == nil {
				b.data, err = io.ReadAll(z)
			}
		}
		if err != nil {
			b.err = core.Errorf(core.KindInternal, "", "unpack the agent for linux/%s: %w", arch, err)
			return
		}
		sum := sha256.Sum256(b.data)
		b.hash = hex.EncodeToString(sum[:8])
	})
	return b
}

// BinaryBytes is the agent's program for an architecture ("amd64", "arm64").
func BinaryBytes(arch string) ([]byte, error) {
	b := load(arch)
	return b.data, b.err
}

// BinaryHash names the content of an architecture's program, for volumes and files.
func BinaryHash(arch string) (string, error) {
	b := load(arch)
	return b.hash, b.err
}

// Binary puts the program for an architecture into the cache folder, once, and
// gives its path. The file's name holds its hash, so versions never meet.
func Binary(arch string) (string, error) {
	b := load(arch)
	if b.err != nil {
		return "", b.err
	}
	dir, err := core.CacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "agents")
	path := filepath.Join(dir, "ngs-agent-"+b.hash+"-"+arch)
	if st, err := os.Stat(path); err == nil && st.Size() == int64(len(b.data)) {
		return path, nil
	}
	// The folder can be entered by other users: a sandbox may run as one.
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the agent's folder: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".ngs-agent-")
	if err != nil {
		return "", fmt.Errorf("unpack the agent: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(b.data)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return "", fmt.Errorf("unpack the agent to %s: %w", path, err)
	}
	return path, nil
}
