// Command capi is the shared library libngs.so. Its C interface is documented in ngs.h; here arguments are converted and
// panics kept inside, what the functions do is in package dispatch.
package main

/*
#include "notify.h"
*/
import "C"

import (
	"encoding/json"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/nemo-gym/nemo_gym_sandbox/capi/dispatch"
	"github.com/nemo-gym/nemo_gym_sandbox/providers/all"
)

// A c-shared library needs a main function; nobody calls it.
func main() {}

// minProcs is the least number of threads that run Go code at a time. A host's loop that enters Go waits for one of them;
// with as many as there are cores, a few busy goroutines make it wait for time slices of 10 ms.
const minProcs = 8

var (
	starting sync.Mutex
	library  atomic.Pointer[dispatch.Library]
)

type startConfig struct {
	ABI      uint32 `json:"abi"`
	LogLevel int    `json:"log_level"`
}

// contain is deferred by every exported function: a panic becomes a code.
func contain(rc *C.int64_t) {
	if r := recover(); r != nil {
		if l := library.Load(); l != nil {
			_ = l.Recovered(r) // it is recorded there; the caller gets the code
		}
		*rc = C.int64_t(dispatch.ErrPanic)
	}
}

// input views a caller's buffer as a slice for the length of the call.
func input(p unsafe.Pointer, n C.uint64_t) []byte {
	if p == nil || n == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(p), n)
}

// text copies b to a caller's buffer and answers its whole length.
func text(b []byte, buf *C.char, n C.uint64_t) C.int64_t {
	copy(input(unsafe.Pointer(buf), n), b)
	return C.int64_t(len(b))
}

// count is the answer of calls that give a number of bytes or a code.
func count(n int, code dispatch.Code) C.int64_t {
	if code != dispatch.OK {
		return C.int64_t(code)
	}
	return C.int64_t(n)
}

//export ngsgo_build_info
func ngsgo_build_info(buf *C.char, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	about := map[string]any{"abi_major": C.NGS_ABI_MAJOR, "abi_minor": C.NGS_ABI_MINOR, "go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		about["module"], about["version"] = info.Main.Path, info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" || s.Key == "GOARCH" {
				about[s.Key] = s.Value
			}
		}
	}
	about["providers"] = all.Registry().Names()
	raw, err := json.Marshal(about)
	if err != nil {
		return C.int64_t(dispatch.ErrInvalid)
	}
	return text(raw, buf, n)
}

//export ngsgo_runtime_start
func ngsgo_runtime_start(cfg unsafe.Pointer, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	c := startConfig{LogLevel: int(slog.LevelInfo)}
	if n > 0 {
		if err := json.Unmarshal(input(cfg, n), &c); err != nil {
			return C.int64_t(dispatch.ErrInvalid)
		}
	}
	if c.ABI != 0 && (c.ABI>>16 != C.NGS_ABI_MAJOR || c.ABI&0xffff > C.NGS_ABI_MINOR) {
		return C.int64_t(dispatch.ErrABI)
	}
	starting.Lock()
	defer starting.Unlock()
	if library.Load() != nil {
		return C.int64_t(dispatch.OK)
	}
	procs, err := strconv.Atoi(os.Getenv("GOMAXPROCS"))
	if err != nil || procs < 1 {
		procs = max(minProcs, 2*runtime.GOMAXPROCS(0))
	}
	runtime.GOMAXPROCS(procs) // also when the variable was set after Go looked at it
	l := dispatch.New(all.Registry())
	// Also what packages write with the default loggers: a library does not print.
	slog.SetDefault(slog.New(l.LogHandler(slog.Level(c.LogLevel))))
	library.Store(l)
	return C.int64_t(dispatch.OK)
}

//export ngsgo_shutdown
func ngsgo_shutdown(timeoutMS C.int64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.OK)
	}
	code := l.Shutdown(time.Duration(max(timeoutMS, 0)) * time.Millisecond)
	endNotifiers()
	return C.int64_t(code)
}

//export ngsgo_stats
func ngsgo_stats(buf *C.char, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	return text(l.Stats(), buf, n)
}

//export ngsgo_provider_new
func ngsgo_provider_new(name unsafe.Pointer, nameLen C.uint64_t, config unsafe.Pointer, configLen C.uint64_t, errBuf *C.char, errCap C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	own := append([]byte(nil), input(config, configLen)...)
	h, err := l.NewProvider(string(input(name, nameLen)), own)
	if err == nil {
		return C.int64_t(h)
	}
	code, raw := dispatch.Describe(err)
	if room := input(unsafe.Pointer(errBuf), errCap); len(room) > 0 {
		room[copy(room[:len(room)-1], raw)] = 0
	}
	return C.int64_t(code)
}

//export ngsgo_release
func ngsgo_release(h C.int64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	return C.int64_t(l.Release(dispatch.Handle(h)))
}

//export ngsgo_bridge_new
func ngsgo_bridge_new() (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	h, code := l.NewBridge()
	return count(int(h), code)
}

// bridge finds a bridge for an exported function.
func bridge(h C.int64_t) (*dispatch.Bridge, dispatch.Code) {
	l := library.Load()
	if l == nil {
		return nil, dispatch.ErrNotStarted
	}
	return l.Bridge(dispatch.Handle(h))
}

//export ngsgo_bridge_fd
func ngsgo_bridge_fd(h C.int64_t) (rc C.int64_t) {
	defer contain(&rc)
	b, code := bridge(h)
	if code != dispatch.OK {
		return C.int64_t(code)
	}
	if fd := b.Descriptor(); fd >= 0 {
		return C.int64_t(fd)
	}
	return C.int64_t(dispatch.ErrClosed)
}

//export ngsgo_bridge_close
func ngsgo_bridge_close(h C.int64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	endNotifier(h)
	return C.int64_t(l.CloseBridge(dispatch.Handle(h)))
}

//export ngsgo_submit
func ngsgo_submit(h C.int64_t, id C.uint64_t, op C.uint32_t, req unsafe.Pointer, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	b, code := bridge(h)
	if code != dispatch.OK {
		return C.int64_t(code)
	}
	return C.int64_t(b.Submit(uint64(id), uint32(op), input(req, n)))
}

//export ngsgo_cancel
func ngsgo_cancel(h C.int64_t, id C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	b, code := bridge(h)
	if code != dispatch.OK {
		return C.int64_t(code)
	}
	return C.int64_t(b.Cancel(uint64(id)))
}

//export ngsgo_drain
func ngsgo_drain(h C.int64_t, buf unsafe.Pointer, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	b, code := bridge(h)
	if code != dispatch.OK {
		return C.int64_t(code)
	}
	return count(b.Drain(input(buf, n)))
}

//export ngsgo_stream_read
func ngsgo_stream_read(h C.int64_t, buf unsafe.Pointer, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	return count(l.StreamRead(dispatch.Handle(h), input(buf, n)))
}

//export ngsgo_stream_write
func ngsgo_stream_write(h C.int64_t, buf unsafe.Pointer, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	return count(l.StreamWrite(dispatch.Handle(h), input(buf, n)))
}

//export ngsgo_stream_error
func ngsgo_stream_error(h C.int64_t, buf *C.char, n C.uint64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	raw, code := l.StreamError(dispatch.Handle(h))
	if code != dispatch.OK {
		return C.int64_t(code)
	}
	return text(raw, buf, n)
}

//export ngsgo_stream_close_write
func ngsgo_stream_close_write(h C.int64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	return C.int64_t(l.StreamCloseWrite(dispatch.Handle(h)))
}

//export ngsgo_stream_close
func ngsgo_stream_close(h C.int64_t) (rc C.int64_t) {
	defer contain(&rc)
	l := library.Load()
	if l == nil {
		return C.int64_t(dispatch.ErrNotStarted)
	}
	return C.int64_t(l.StreamClose(dispatch.Handle(h)))
}
