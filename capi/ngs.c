/*
 * The public functions: each looks at the fork flag and goes on in Go. They are C because a forked child has no Go
 * scheduler to enter, and because only these names are to be visible in the library.
 */
#define _GNU_SOURCE /* environ */

#include "ngs.h"
#include "notify.h"
#include "_cgo_export.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

/* Only ever set, in the child, before another thread can be there. */
static volatile int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

#define ENTER() \
	do { \
		if (__builtin_expect(forked, 0)) return NGS_EFORKED; \
	} while (0)

uint32_t ngs_abi_version(void) { return NGS_ABI_MAJOR << 16 | NGS_ABI_MINOR; }

const char *ngs_strerror(int64_t code)
{
	switch (code) {
	case NGS_EFORKED: return "the library cannot be used in a forked child; use exec, or multiprocessing's spawn or forkserver";
	case NGS_EPANIC: return "a fault in the library was caught";
	case NGS_EBADHANDLE: return "the handle is not valid";
	case NGS_ECLOSED: return "the object or the library has been closed";
	case NGS_EAGAIN: return "too many operations or objects at once";
	case NGS_EABI: return "caller and library were built for different versions of the interface";
	case NGS_EINVAL: return "an argument is not valid";
	case NGS_EOF: return "the stream has ended";
	case NGS_ETOOSMALL: return "the buffer is too small";
	case NGS_EEXISTS: return "an operation with this id is in flight";
	case NGS_ENOTSTARTED: return "ngs_runtime_start was not called";
	case NGS_EFAILED: return "the stream failed";
	case NGS_KIND_CREATE: return "the sandbox could not be made";
	case NGS_KIND_VERIFICATION: return "the sandbox failed its readiness check";
	case NGS_KIND_PTY: return "the terminal session failed";
	case NGS_KIND_NOT_SUPPORTED: return "the backend cannot do that";
	case NGS_KIND_NOT_STARTED: return "the sandbox has not been started";
	case NGS_KIND_TIMEOUT: return "the operation took too long";
	case NGS_KIND_SANDBOX: return "the sandbox's runtime failed";
	case NGS_KIND_NOT_FOUND: return "not found";
	case NGS_KIND_CONFLICT: return "the state forbids that";
	case NGS_KIND_AUTH: return "credentials are missing or refused";
	case NGS_KIND_INVALID: return "the request is not valid";
	case NGS_KIND_UNKNOWN_KEY: return "unknown configuration key";
	case NGS_KIND_CLOSED: return "the sandbox or provider has been stopped";
	case NGS_KIND_CANCELED: return "canceled";
	case NGS_KIND_INTERNAL: return "internal error";
	default: return code >= 0 ? "ok" : "unknown code";
	}
}

int64_t ngs_layout(uint32_t *out, uint64_t n)
{
	const uint32_t all[] = {
		sizeof(ngs_event),         offsetof(ngs_event, id),     offsetof(ngs_event, len), offsetof(ngs_event, kind),
		offsetof(ngs_event, flags), offsetof(ngs_event, status), offsetof(ngs_event, aux),
	};
	const uint64_t count = sizeof all / sizeof all[0];
	memcpy(out, all, (n < count ? n : count) * sizeof all[0]);
	return (int64_t)count;
}

int32_t ngs_fix_onstack(void)
{
	int32_t fixed = 0;
	for (int sig = 1; sig < NSIG; sig++) {
		struct sigaction act;
		if (sigaction(sig, NULL, &act) != 0 || act.sa_flags & SA_ONSTACK) continue;
		if (!(act.sa_flags & SA_SIGINFO) && (act.sa_handler == SIG_DFL || act.sa_handler == SIG_IGN)) continue;
		act.sa_flags |= SA_ONSTACK;
		if (sigaction(sig, &act, NULL) == 0) fixed++;
	}
	return fixed;
}

int32_t ngs_sync_environ(void)
{
	ENTER();
	return (int32_t)ngsgo_sync_environ(environ);
}

int64_t ngs_build_info(char *buf, uint64_t cap) { ENTER(); return ngsgo_build_info(buf, cap); }

int32_t ngs_runtime_start(const char *cfg, uint64_t len)
{
	ENTER();
	ngs_fix_onstack();
	ngs_sync_environ();
	return (int32_t)ngsgo_runtime_start((void *)cfg, len);
}

int32_t ngs_shutdown(int64_t timeout_ms) { ENTER(); return (int32_t)ngsgo_shutdown(timeout_ms); }

int64_t ngs_stats(char *buf, uint64_t cap) { ENTER(); return ngsgo_stats(buf, cap); }

int64_t ngs_provider_new(const char *name, uint64_t name_len, const char *config, uint64_t config_len, char *err,
			 uint64_t err_cap)
{
	ENTER();
	return ngsgo_provider_new((void *)name, name_len, (void *)config, config_len, err, err_cap);
}

int32_t ngs_release(int64_t handle) { ENTER(); return (int32_t)ngsgo_release(handle); }

int64_t ngs_bridge_new(void) { ENTER(); return ngsgo_bridge_new(); }

int32_t ngs_bridge_fd(int64_t bridge) { ENTER(); return (int32_t)ngsgo_bridge_fd(bridge); }

int32_t ngs_bridge_close(int64_t bridge) { ENTER(); return (int32_t)ngsgo_bridge_close(bridge); }

int32_t ngs_set_notify(int64_t bridge, ngs_notify_fn fn, void *user)
{
	ENTER();
	return (int32_t)ngsgo_set_notify(bridge, fn, (uintptr_t)user);
}

int32_t ngs_submit(int64_t bridge, uint64_t id, uint32_t op, const void *req, uint64_t len)
{
	ENTER();
	return (int32_t)ngsgo_submit(bridge, id, op, (void *)req, len);
}

int32_t ngs_cancel(int64_t bridge, uint64_t id) { ENTER(); return (int32_t)ngsgo_cancel(bridge, id); }

int64_t ngs_drain(int64_t bridge, void *buf, uint64_t cap) { ENTER(); return ngsgo_drain(bridge, buf, cap); }

int64_t ngs_stream_read(int64_t stream, void *buf, uint64_t cap) { ENTER(); return ngsgo_stream_read(stream, buf, cap); }

int64_t ngs_stream_write(int64_t stream, const void *buf, uint64_t len)
{
	ENTER();
	return ngsgo_stream_write(stream, (void *)buf, len);
}

int64_t ngs_stream_error(int64_t stream, char *buf, uint64_t cap) { ENTER(); return ngsgo_stream_error(stream, buf, cap); }

int32_t ngs_stream_close_write(int64_t stream) { ENTER(); return (int32_t)ngsgo_stream_close_write(stream); }

int32_t ngs_stream_close(int64_t stream) { ENTER(); return (int32_t)ngsgo_stream_close(stream); }

/* ---- for Go ----------------------------------------------------------------------------------------------------------- */

static void *notify_thread(void *ref)
{
	ngsgo_notify_loop(ref);
	return NULL;
}

int ngs_start_notify_thread(void *ref, unsigned long *thread)
{
	pthread_t t;
	int err = pthread_create(&t, NULL, notify_thread, ref);
	if (err == 0) *thread = (unsigned long)t;
	return err;
}

void ngs_end_notify_thread(unsigned long thread)
{
	if (pthread_equal((pthread_t)thread, pthread_self()))
		pthread_detach((pthread_t)thread);
	else
		pthread_join((pthread_t)thread, NULL);
}

void ngs_call_notify(ngs_notify_fn fn, uintptr_t user) { fn((void *)user); }
