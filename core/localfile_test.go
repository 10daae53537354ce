package core

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
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
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	_, _, err := OpenLocal("/proc/version")
	require.ErrorContains(t, err, "does not tell its size")
	f, st, err := OpenLocal(empty)
	require.NoError(t, err)
	assert.Zero(t, st.Size())
	require.NoError(t, f.Close())
}

func TestWhatCanNotBeUploadedIsNamed(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for path, want := range map[string]string{os.DevNull: "not a regular file", pipe: "not a regular file", t.TempDir(): "it is a directory"} {
		_, _, err := OpenLocal(path)
		require.ErrorContains(t, err, want)
		assert.Equal(t, KindInvalid, LocalKind(err))
	}
	_, _, err := OpenLocal(pipe + "-not")
	assert.Equal(t, KindNotFound, LocalKind(err))
}
