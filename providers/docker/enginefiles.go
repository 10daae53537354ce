package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/nemo-gym/nemo_gym_sandbox/core"
)

// Files travel over execs rather than over the engine's archive calls, which
// don't see what is mounted inside a running container, as a tmpfs.

// receiveScript writes its input to the file $1 with the mode $2 for the user
// $3: beside its place first, then moved there. Parents that it makes belong to that user too.
const receiveScript = `f=$1 mode=$2 owner=$3
case $f in /*) ;; *) f=$PWD/$f;; esac
[ -d "$f" ] && { echo "it is a directory" >&2; exit 21; }
d=${f%/*}
made() {
	[ -z "$1" ] || [ -d "$1" ] && return 0
	made "${1%/*}" || return 1
	mkdir "$1" 2>/dev/null || { [ -d "$1" ] && return 0; mkdir "$1"; return 1; }
	[ -z "$owner" ] || chown "$owner" "$1"
}
made "$d" || exit 22
while [ -L "$f" ]; do
	l=$(readlink "$f") || break
	case $l in /*) f=$l;; *) f=${f%/*}/$l;; esac
done
[ -d "$f" ] && { echo "it is a directory" >&2; exit 21; }
[ -e "$f" ] && [ ! -f "$f" ] && { echo "it is no regular file" >&2; exit 21; }
t="${f%/*}/.ngs-$4"
trap 'rm -f "$t"' EXIT
umask 077
cat >"$t" || exit 23
[ "$(wc -c <"$t")" -eq "$5" ] || { echo "it arrived incomplete" >&2; exit 24; }
[ -z "$owner" ] || chown "$owner" "$t" || exit 25
chmod "$mode" "$t" && mv -f "$t" "$f"
`

// sendScript prints the size and mode of the file $1, then what is in it.
const sendScript = `[ -d "$1" ] && { echo "it is a directory" >&2; exit 21; }
[ -e "$1" ] || { echo "no such file" >&2; exit 20; }
[ -f "$1" ] || { echo "it is no regular file" >&2; exit 21; }
exec <"$1" || exit 23
n=$(wc -c <"$1") || exit 23
[ -x "$1" ] && x=755 || x=644
echo $n $x
exec cat
`

// upload implements runner.
func (r *engineRunner) upload(ctx context.Context, localPath, remotePath string) error {
	fail := func(kind core.Kind, err error) error {
		return core.Errorf(kind, "upload", "upload %s to %s: %w", localPath, remotePath, err)
	}
	f, st, err := core.OpenLocal(localPath)
	if err != nil {
		return fail(core.LocalKind(err), err)
	}
	defer func() { _ = f.Close() }()
	owner := firstOf(r.keptDefaults().User, r.args.user, r.user)
	errText, code, err := r.script(ctx, receiveScript, io.LimitReader(f, st.Size()), io.Discard,
		r.inside(remotePath), strconv.FormatUint(uint64(st.Mode().Perm()), 8), owner, randomHex(8), strconv.FormatInt(st.Size(), 10))
	switch {
	case err != nil:
		return fail(r.fileKind(ctx), err)
	case code == 21:
		return fail(core.KindInvalid, fmt.Errorf("%s", errText))
	case code != 0:
		return fail(core.KindSandbox, fmt.Errorf("code %d: %s", code, errText))
	}
	return nil
}

// download implements runner.
func (r *engineRunner) download(ctx context.Context, remotePath, localPath string) (err error) {
	fail := func(kind core.Kind, err error) error {
		return core.Errorf(kind, "download", "download %s to %s: %w", remotePath, localPath, err)
	}
	target, err := core.LocalTarget(localPath)
	if err != nil {
		return fail(core.KindInvalid, err)
	}
	dir := filepath.Dir(target)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fail(core.LocalKind(err), err)
	}
	tmp, err := os.CreateTemp(dir, ".ngs-download-")
	if err != nil {
		return fail(core.LocalKind(err), err)
	}
	defer func() {
		_ = tmp.Close()
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	arrival := &fileArrival{file: tmp}
	errText, code, err := r.script(ctx, sendScript, nil, arrival, r.inside(remotePath))
	switch {
	case err != nil:
		return fail(r.fileKind(ctx), err)
	case code == 20:
		return fail(core.KindNotFound, fmt.Errorf("%s: %w", errText, fs.ErrNotExist))
	case code == 21:
		return fail(core.KindInvalid, errors.New(errText))
	case code != 0:
		return fail(core.KindSandbox, fmt.Errorf("code %d: %s", code, errText))
	}
	if err := arrival.finish(); err != nil {
		return fail(core.KindSandbox, err)
	}
	if err := tmp.Close(); err != nil {
		return fail(core.LocalKind(err), err)
	}
	if err := os.Rename(tmp.Name(), target); err != nil {
		return fail(core.LocalKind(err), err)
	}
	return nil
}

// script runs a shell script as root where commands run by default, and gives what it complained about.
func (r *engineRunner) script(ctx context.Context, script string, stdin io.Reader, stdout io.Writer, args ...string) (complaint string, code int, err error) {
	id, err := r.i.p.engine.ExecCreate(ctx, r.i.name, container.ExecOptions{
		User: "0:0", WorkingDir: r.args.workdir,
		Cmd:         append([]string{"/bin/sh", "-c", script, "sh"}, args...),
		AttachStdin: stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return "", 0, r.because(ctx, err)
	}
	stream, err := r.i.p.engine.ExecAttach(ctx, id)
	if err != nil {
		return "", 0, r.because(ctx, err)
	}
	errOut := core.NewCollector(8 << 10)
	defer errOut.Close()
	x := newExecution(r.i.p.engine, id, stream, splitSink{stdout, errOut})
	defer x.close()
	x.feed(stdin)
	state, err := x.await(ctx)
	if err != nil {
		return "", 0, r.because(ctx, err)
	}
	if state.Pid == 0 {
		return "", 0, fmt.Errorf("the engine could not start a shell in the container: %s", oneLine(x.held.take()))
	}
	x.held.flush()
	return oneLine(errOut.Output(core.Stderr).String()), state.ExitCode, nil
}

// because prefers what became of the container to how that was noticed.
func (r *engineRunner) because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if v := r.i.diagnose(ctx); v.reason != "" {
		return fmt.Errorf("%s", v.reason)
	}
	return err
}

func (r *engineRunner) fileKind(ctx context.Context) core.Kind {
	if ctx.Err() != nil {
		return core.KindCanceled
	}
	return core.KindSandbox
}

// splitSink gives standard output to a writer and standard error to a collector.
type splitSink struct {
	out io.Writer
	err *core.Collector
}

// Write implements core.Sink.
func (s splitSink) Write(stream core.Stream, p []byte) error {
	if stream == core.Stderr {
		return s.err.Write(stream, p)
	}
	_, err := s.out.Write(p)
	return err
}

// fileArrival takes what sendScript prints. It is written by one goroutine.
type fileArrival struct {
	file *os.File
	head []byte // the first line, until it is complete
	size int64
	mode fs.FileMode
	read bool // the first line
	got  int64
	err  error
}

// Write implements io.Writer.
func (a *fileArrival) Write(p []byte) (int, error) {
	all := len(p)
	if a.err != nil {
		return 0, a.err
	}
	if !a.read {
		a.head = append(a.head, p...)
		line, _, ok := strings.Cut(string(a.head[:min(len(a.head), 64)]), "\n")
		if !ok && len(a.head) < 64 {
			return all, nil
		}
		fields := strings.Fields(line)
		if len(fields) != 2 {
			a.err = fmt.Errorf("the container announced no file")
			return 0, a.err
		}
		mode, merr := strconv.ParseUint(fields[1], 8, 32)
		size, serr := strconv.ParseInt(fields[0], 10, 64)
		if a.err = errors.Join(merr, serr); a.err != nil {
			return 0, a.err
		}
		a.size, a.mode, a.read = size, fileMode(mode), true
		p = a.head[len(line)+1:]
	}
	n, err := a.file.Write(p)
	a.got += int64(n)
	a.err = err
	return all, err
}

// finish checks that everything came: engines are known to lose the end of large outputs.
func (a *fileArrival) finish() error {
	switch {
	case a.err != nil:
		return a.err
	case !a.read || a.got != a.size:
		return fmt.Errorf("it arrived incomplete: %d of %d bytes", a.got, a.size)
	}
	return a.file.Chmod(a.mode)
}
