// Package files has what is the same for all ways by which a file comes into a sandbox.
package files

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// maxLinks bounds a chain of symbolic links, as the kernel does.
const maxLinks = 40

// FollowLinks finds the file that a link stands for, so that the link stays when the file is replaced.
func FollowLinks(p string) (string, error) {
	for range maxLinks {
		to, err := os.Readlink(p)
		if err != nil {
			return p, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(p), to)
		}
		p = to
	}
	return "", unix.ELOOP
}

// Beside makes a file next to a target, to take its place when it is whole. Until then only its owner may look into it.
func Beside(target string) (*os.File, string, error) {
	suffix := make([]byte, 6)
	if _, err := rand.Read(suffix); err != nil {
		return nil, "", err
	}
	tmp := filepath.Join(filepath.Dir(target), ".ngs-upload-"+hex.EncodeToString(suffix))
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	return f, tmp, err
}
