package main

/*
#include "notify.h"
*/
import "C"

import (
	"os"
	"strings"
	"unsafe"

	"github.com/nemo-gym/nemo_gym_sandbox/capi/dispatch"
)

// ngsgo_sync_environ takes over the C environment: Go's is a copy that was made when the process began.
//
//export ngsgo_sync_environ
func ngsgo_sync_environ(environ **C.char) (rc C.int64_t) {
	defer contain(&rc)
	now := map[string]string{}
	for p := environ; p != nil && *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(p))) {
		if name, value, ok := strings.Cut(C.GoString(*p), "="); ok && name != "" {
			if _, again := now[name]; !again { // getenv answers the first
				now[name] = value
			}
		}
	}
	for _, entry := range os.Environ() {
		name, value, _ := strings.Cut(entry, "=")
		if name == "" {
			continue
		}
		if want, ok := now[name]; !ok {
			_ = os.Unsetenv(name) // it fails for names that can't be in an environment
		} else if want == value {
			delete(now, name)
		}
	}
	for name, value := range now {
		_ = os.Setenv(name, value) // likewise
	}
	return C.int64_t(dispatch.OK)
}
