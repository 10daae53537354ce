package core

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestADownloadGoesWhereItDestroysNothing(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Symlink("file", link))
	require.NoError(t, os.Symlink("none", filepath.Join(dir, "dangling")))
	for path, want := range map[string]string{
		file: file, link: file,
		filepath.Join(dir, "none"):          filepath.Join(dir, "none"),
		filepath.Join(dir, "dangling"):      filepath.Join(dir, "dangling"),
		filepath.Join(dir, "no", "way"):     filepath.Join(dir, "no", "way"),
		filepath.Join(file, "below a file"): filepath.Join(file, "below a file"),
	} {
		got, err := LocalTarget(path)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	_, err := LocalTarget(os.DevNull)
	assert.ErrorContains(t, err, "not a regular file")
	_, err = LocalTarget(dir)
	assert.ErrorContains(t, err, "directory")
}

func TestFilesNeedNamesThatFilesCanHave(t *testing.T) {
	sb := NewSandbox(&scripted{}, Spec{})
	require.NoError(t, sb.Start(context.Background()))
	defer func() { require.NoError(t, sb.Stop(context.Background())) }()
	for _, path := range []string{"", "/", "dir/", "dir/.", "a\x00b"} {
		assert.Equal(t, KindInvalid, KindOf(sb.Upload(context.Background(), "x", path)), "%q", path)
		assert.Error(t, (&Spec{Files: []File{{Path: path}}}).Validate(), "%q", path)
	}
	require.NoError(t, sb.Upload(context.Background(), "x", "dir/.hidden"))
}

func TestFilesThatDoNotTellTheirSizeAreNotUploadedEmpty(t *testing.T) {
	for path, refused := range map[string]bool{"/proc/version": true, os.DevNull: false, filepath.Join(t.TempDir(), "empty"): false} {
		f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
		require.NoError(t, err)
		st, err := f.Stat()
		require.NoError(t, err)
		assert.Equal(t, refused, CheckSize(f, st) != nil, path)
		require.NoError(t, f.Close())
	}
}
