package main

/*
#include "notify.h"
*/
import "C"

import (
	"sync"
	"unsafe"

	"github.com/mattn/go-pointer"

	"github.com/nemo-gym/nemo_gym_sandbox/capi/dispatch"
)

// notifier calls a C program back for one bridge, from a thread of its own: a callback may then keep thread-local state,
// and one that takes its time delays nobody else. The thread is made by C and is given the notifier as its void*.
type notifier struct {
	fn     C.ngs_notify_fn
	user   C.uintptr_t   // the caller's cookie; a number, since Go must not follow it
	wake   chan struct{} // holds at most one
	quit   chan struct{}
	thread C.ulong
}

var (
	// notifyMu guards notifiers and the start of their threads. It is not held while a callback runs or is waited for.
	notifyMu  sync.Mutex
	notifiers = map[C.int64_t]*notifier{}
)

//export ngsgo_set_notify
func ngsgo_set_notify(h C.int64_t, fn C.ngs_notify_fn, user C.uintptr_t) (rc C.int64_t) {
	defer contain(&rc)
	b, code := bridge(h)
	if code != dispatch.OK {
		return C.int64_t(code)
	}
	b.SetNotify(nil)
	endNotifier(h)
	if fn == nil {
		return C.int64_t(dispatch.OK)
	}
	n := &notifier{fn: fn, user: user, wake: make(chan struct{}, 1), quit: make(chan struct{})}
	ref := pointer.Save(n)
	notifyMu.Lock()
	if notifiers[h] != nil || C.ngs_start_notify_thread(ref, &n.thread) != 0 {
		notifyMu.Unlock()
		pointer.Unref(ref)
		return C.int64_t(dispatch.ErrAgain)
	}
	notifiers[h] = n
	notifyMu.Unlock()
	b.SetNotify(func() {
		select {
		case n.wake <- struct{}{}:
		default: // a call is due anyway
		}
	})
	return C.int64_t(dispatch.OK)
}

// ngsgo_notify_loop is the life of a notifier's thread.
//
//export ngsgo_notify_loop
func ngsgo_notify_loop(ref unsafe.Pointer) {
	var rc C.int64_t
	defer contain(&rc)
	n := pointer.Restore(ref).(*notifier)
	pointer.Unref(ref)
	for {
		select {
		case <-n.quit:
			return
		case <-n.wake:
		}
		select {
		case <-n.quit: // it wins when both are there
			return
		default:
			C.ngs_call_notify(n.fn, n.user)
		}
	}
}

// endNotifier ends the callbacks of a bridge. It waits for one that runs, unless it is called from that.
func endNotifier(h C.int64_t) {
	notifyMu.Lock()
	n := notifiers[h]
	delete(notifiers, h)
	notifyMu.Unlock()
	if n != nil {
		close(n.quit)
		C.ngs_end_notify_thread(n.thread)
	}
}

func endNotifiers() {
	notifyMu.Lock()
	var all []C.int64_t
	for h := range notifiers {
		all = append(all, h)
	}
	notifyMu.Unlock()
	for _, h := range all {
		endNotifier(h)
	}
}
