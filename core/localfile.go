package core

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// LocalTarget is where on this host a download to a path has to be put: where the path's links lead to. A directory,
// device, pipe or socket is refused, since a file that is moved to its place would destroy it.
func LocalTarget(path string) (string, error) {
	target, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path, nil // not there yet, or whoever makes the file will say what is wrong
	}
	st, err := os.Stat(target)
	switch {
	case err != nil:
		return path, nil
	case st.IsDir():
		return "", errors.New("it is a directory; name the file in it")
	case !st.Mode().IsRegular():
		return "", fmt.Errorf("it is not a regular file (%s)", st.Mode().Type())
	}
	return target, nil
}

// OpenLocal opens what an upload is to carry, a regular file of this host.
func OpenLocal(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // else the open of a FIFO would wait for a writer
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err // whoever says what was attempted names the path
		}
		return nil, nil, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case st.IsDir():
		err = errors.New("it is a directory; upload its files one by one")
	case !st.Mode().IsRegular():
		err = fmt.Errorf("it is not a regular file (%s)", st.Mode().Type())
	default:
		err = checkSize(f, st)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// LocalKind is the kind of an error about a file of this host.
func LocalKind(err error) Kind {
	if errors.Is(err, fs.ErrNotExist) {
		return KindNotFound
	}
	return KindInvalid
}

// checkSize refuses a file that says it is empty and is not, as those of /proc do: it would arrive empty.
func checkSize(f *os.File, st fs.FileInfo) error {
	if st.Size() > 0 {
		return nil
	}
	if n, _ := f.ReadAt(make([]byte, 1), 0); n > 0 {
		return errors.New("it does not tell its size; make a copy and take that")
	}
	return nil
}

// checkRemoteTarget refuses a path that no file in a sandbox can have.
func checkRemoteTarget(path string) error {
	switch {
	case path == "":
		return errors.New("the target's name is empty")
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("the target's name %q has a NUL in it", path)
	case strings.HasSuffix(path, "/"), strings.HasSuffix(path, "/."):
		return fmt.Errorf("the target %s is a directory; name the file in it", path)
	}
	return nil
}
