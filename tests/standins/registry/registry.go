// Package registry is an image registry on this machine's loopback, as small as
// an engine will pull from. It can want a login, and it can keep silent.
package registry

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
)

// Registry serves images. Make one with Start, end it with Close.
type Registry struct {
	// Host is its address as the first part of an image's name.
	Host string

	user, password string
	server         *httptest.Server
	gone           chan struct{} // closed by Close: nobody who hangs is waited for

	mu        sync.Mutex
	blobs     map[string][]byte // by digest
	manifests map[string][]byte // by name:tag and by name@digest
	silent    bool
	logins    []string
	asked     chan string // gets the path of each request that is kept waiting
	pulls     int
}

// Start begins to serve. An empty user means that nobody has to log in.
func Start(user, password string) *Registry {
	r := &Registry{user: user, password: password, gone: make(chan struct{}), asked: make(chan string, 100),
		blobs: map[string][]byte{}, manifests: map[string][]byte{}}
	r.server = httptest.NewServer(http.HandlerFunc(r.serve))
	r.Host = strings.TrimPrefix(r.server.URL, "http://")
	return r
}

// Close ends it, also for those who wait for an answer.
func (r *Registry) Close() {
	close(r.gone)
	r.server.CloseClientConnections()
	r.server.Close()
}

// Silence makes it never answer about an image.
func (r *Registry) Silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent = true
}

// Asked gives the path of each request that is left without an answer.
func (r *Registry) Asked() <-chan string { return r.asked }

// Logins are the user names that came with requests.
func (r *Registry) Logins() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.logins...)
}

// Pulls is how many layers were fetched.
func (r *Registry) Pulls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pulls
}

// Put adds an image of one layer with the files, and gives its full name.
func (r *Registry) Put(name, arch string, files map[string][]byte) (string, error) {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	for path, data := range files {
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o755, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			return "", err
		}
		if _, err := w.Write(data); err != nil {
			return "", err
		}
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	layerDigest := r.blob(layer.Bytes())
	config, err := json.Marshal(map[string]any{
		"architecture": arch, "os": "linux", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerDigest}},
	})
	if err != nil {
		return "", err
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": map[string]any{"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config), "digest": r.blob(config)},
		"layers": []any{map[string]any{"mediaType": "application/vnd.docker.image.rootfs.diff.tar", "size": layer.Len(), "digest": layerDigest}},
	})
	if err != nil {
		return "", err
	}
	repo, _, _ := strings.Cut(name, ":")
	r.manifests[name] = manifest
	r.manifests[repo+":"+digest(manifest)] = manifest
	return r.Host + "/" + name, nil
}

const manifestType = "application/vnd.docker.distribution.manifest.v2+json"

func digest(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }

// blob keeps data under its digest. The caller holds r.mu.
func (r *Registry) blob(data []byte) string {
	d := digest(data)
	r.blobs[d] = data
	return d
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	user, password, ok := req.BasicAuth()
	r.mu.Lock()
	if ok {
		r.logins = append(r.logins, user)
	}
	silent := r.silent
	r.mu.Unlock()
	if r.user != "" && (user != r.user || password != r.password) {
		w.Header().Set("WWW-Authenticate", `Basic realm="lab"`)
		refuse(w, http.StatusUnauthorized, "UNAUTHORIZED", "authentication required")
		return
	}
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	repo, ref, isManifest := strings.Cut(path, "/manifests/")
	_, blob, isBlob := strings.Cut(path, "/blobs/")
	switch {
	case path == "":
		answer(w, req, "application/json", []byte("{}"))
	case isManifest && silent:
		r.asked <- req.URL.Path
		select {
		case <-r.gone:
		case <-req.Context().Done():
		}
	case isManifest:
		r.send(w, req, r.manifests, repo+":"+ref, manifestType)
	case isBlob:
		r.send(w, req, r.blobs, blob, "application/octet-stream")
	default:
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such page")
	}
}

func (r *Registry) send(w http.ResponseWriter, req *http.Request, from map[string][]byte, key, mediaType string) {
	r.mu.Lock()
	data, ok := from[key]
	if ok && mediaType != manifestType && req.Method == http.MethodGet {
		r.pulls++
	}
	r.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "MANIFEST_UNKNOWN", "manifest unknown")
		return
	}
	w.Header().Set("Docker-Content-Digest", digest(data))
	answer(w, req, mediaType, data)
}

func answer(w http.ResponseWriter, req *http.Request, mediaType string, data []byte) {
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(data) // a client that has gone misses nothing
	}
}

func refuse(w http.ResponseWriter, code int, name, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = fmt.Fprintf(w, `{"errors":[{"code":%q,"message":%q}]}`, name, message)
}
