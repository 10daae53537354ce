/*
 * ngs.h - the C interface of the nemo_gym_sandbox library (libngs.so).
 *
 * The library makes sandboxes and runs commands in them. Its calls never wait for a sandbox: a request is submitted, and
 * its outcome arrives later as an event.
 *
 *     ngs_runtime_start("", 0);
 *     int64_t bridge = ngs_bridge_new();            one per event loop or thread
 *     int64_t provider = ngs_provider_new("local", 5, "{}", 2, err, sizeof err);
 *     ngs_submit(bridge, 1, NGS_OP_CREATE, req, len);
 *     poll() on ngs_bridge_fd(bridge), then ngs_drain(): an event NGS_EVENT_DONE with id 1
 *
 * Memory. A caller owns every buffer that it passes; the library has copied what it needs, and keeps no pointer, when a
 * call returns (the one exception is the user pointer of ngs_set_notify, which is only handed back). No call gives
 * memory that must be freed.
 *
 * Threads. Every function may be called from any thread. One thread at a time should drain a bridge. No function waits
 * for input, output or another operation, except ngs_shutdown and where it is said; none but ngs_set_notify leads to a
 * callback.
 *
 * Fork. A forked child has the library's memory but not its threads: every function answers NGS_EFORKED there. A child
 * that calls exec is not concerned.
 *
 * Errors. A negative number is one of the codes below. An operation's own failure is the status of its DONE event: one of
 * the codes, or NGS_KIND_*, with an explanation in the payload.
 *
 * Text is UTF-8, without a terminating zero where a length is given. Numbers in memory are little-endian.
 */
#ifndef NGS_H
#define NGS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Callers need the same major number, and a minor number of at most the library's. */
#define NGS_ABI_MAJOR 1
#define NGS_ABI_MINOR 2

/* ---- codes ---------------------------------------------------------------------------------------------------------- */

#define NGS_OK 0
#define NGS_EFORKED (-101)     /* called in a forked child */
#define NGS_EPANIC (-102)      /* a fault of the library; ngs_stats tells more */
#define NGS_EBADHANDLE (-103)  /* no such object, or not of the right type */
#define NGS_ECLOSED (-104)     /* the object, or the library, has been closed */
#define NGS_EAGAIN (-105)      /* too many operations or objects; drain, then try again */
#define NGS_EABI (-106)        /* the caller was built for another version */
#define NGS_EINVAL (-107)      /* a bad argument */
#define NGS_EOF (-108)         /* the stream has ended */
#define NGS_ETOOSMALL (-109)   /* the buffer cannot take the next event */
#define NGS_EEXISTS (-110)     /* an operation with this id is in flight */
#define NGS_ENOTSTARTED (-111) /* ngs_runtime_start comes first */
#define NGS_EFAILED (-112)     /* the stream failed; ngs_stream_error tells why */

/* Why an operation failed: the status of its DONE event. */
#define NGS_KIND_CREATE (-201)        /* the sandbox could not be made; nothing is left of it */
#define NGS_KIND_VERIFICATION (-202)  /* it was made, but failed its readiness check */
#define NGS_KIND_PTY (-203)           /* a terminal session failed */
#define NGS_KIND_NOT_SUPPORTED (-204) /* the backend, or its configuration, cannot do it */
#define NGS_KIND_NOT_STARTED (-205)
#define NGS_KIND_TIMEOUT (-206)       /* the operation's own deadline; a command's is a result, not an error */
#define NGS_KIND_SANDBOX (-207)       /* the sandbox's runtime failed */
#define NGS_KIND_NOT_FOUND (-208)
#define NGS_KIND_CONFLICT (-209)      /* the state forbids it */
#define NGS_KIND_AUTH (-210)
#define NGS_KIND_INVALID (-211)       /* the request is wrong */
#define NGS_KIND_UNKNOWN_KEY (-212)   /* a configuration key that does not exist */
#define NGS_KIND_CLOSED (-213)
#define NGS_KIND_CANCELED (-214)
#define NGS_KIND_INTERNAL (-215)

/* ---- events --------------------------------------------------------------------------------------------------------- */

/* An event's head. len bytes of payload follow, then zeros up to the next multiple of 8. */
typedef struct ngs_event {
	uint64_t id;    /* the operation, or the stream */
	uint32_t len;   /* bytes of payload, without the zeros */
	uint16_t kind;  /* NGS_EVENT_*; skip kinds that you do not know */
	uint16_t flags; /* NGS_FLAG_* */
	int32_t status; /* DONE: NGS_OK or why it failed */
	uint32_t aux;   /* DONE of EXEC: the exit code; STREAM_OPEN: the command's descriptor */
} ngs_event;

#define NGS_EVENT_DONE 1        /* the operation id is over; exactly one comes for each that was accepted */
#define NGS_EVENT_READABLE 2    /* the stream id has bytes to read, or has ended */
#define NGS_EVENT_WRITABLE 3    /* the stream id takes bytes again, or will take none any more */
#define NGS_EVENT_STREAM_OPEN 4 /* the operation id has a stream: aux is 0, 1 or 2, the payload its handle (int64) */
#define NGS_EVENT_LOG 6         /* a line of the library's log: {"level": -4|0|4|8, "message"} */

#define NGS_FLAG_JSON 2   /* the payload is JSON */
#define NGS_FLAG_FRAMED 4 /* the payload is a uint32 length, JSON of that length, and the bytes that it describes */

/* No event is larger: a buffer of this size can drain any bridge. */
#define NGS_EVENT_MAX (128 * 1024)

/* ---- operations ----------------------------------------------------------------------------------------------------- */

/*
 * Each takes a JSON object; null and absent fields have their defaults. A failure's payload is
 *     {"code", "kind", "message", "op", "provider", "sandbox_id", "retryable"}.
 * Handles are numbers, durations seconds. Cancelling one that makes something leaves nothing.
 */
#define NGS_OP_NOOP 0
#define NGS_OP_PROVIDER_NEW 1   /* {"name", "config": {}} -> {"provider"} */
#define NGS_OP_PROVIDER_CLOSE 2 /* {"provider"} */
/*
 * {"provider", "spec": {"image", "ttl_s", "ready_timeout_s", "workdir", "env": {}, "files": [[path, text]...],
 *  "metadata": {}, "resources": {"cpu", "memory_mib", "disk_gib", "gpu", "gpu_type"}, "entrypoint": [],
 *  "provider_options": {}, "ports": [], "sidecars": [{"name", "image", "env", "resources"}]}} -> {"sandbox", "id", "retries"}.
 * "retries" is how many attempts were made again, absent for none; failures have it too.
 */
#define NGS_OP_CREATE 3
#define NGS_OP_CONNECT 4 /* {"provider", "descriptor": {}} -> {"sandbox", "id"} */
/*
 * {"sandbox", "command" or "argv", "cwd", "env": {}, "user", "timeout_s" (absent: the provider's default, -1: none),
 *  "stdout", "stderr": "collect" (default), "stream" or "discard", "stdin": true to write the input,
 *  "keep_background": true to let services live on}
 * -> framed {"exit_code", "error_type", "reason", "stdout", "stderr": {"len", "ascii", "omitted", "stream"}}.
 * A collected output is inline, stdout first, unless "stream" names the stream to read it from.
 * Streams of a command are announced by STREAM_OPEN before it starts, and are closed by the caller.
 */
#define NGS_OP_EXEC 5
#define NGS_OP_UPLOAD 6   /* {"sandbox", "local", "remote"} */
#define NGS_OP_DOWNLOAD 7 /* {"sandbox", "remote", "local"} */
#define NGS_OP_STATUS 8   /* {"sandbox"} -> {"status"} */
#define NGS_OP_STOP 9     /* {"sandbox"}; can be repeated, also after a failure */
#define NGS_OP_SERIALIZE 10    /* {"sandbox", "scope"} -> the descriptor */
#define NGS_OP_DISCONNECT 11   /* {"sandbox"}: lets go of one that was connected to */
#define NGS_OP_PAUSE 12        /* {"sandbox"} */
#define NGS_OP_RESUME 13       /* {"sandbox"} */
#define NGS_OP_ENDPOINT 14     /* {"sandbox", "port", "direct": as other sandboxes reach it} -> {"url", "headers"} */
#define NGS_OP_SET_DEFAULTS 15 /* {"sandbox", "user", "workdir"}: of later commands; "" goes back */
/*
 * A terminal session: {"sandbox", "command" (absent: an interactive shell), "cwd", "env": {}, "user", "rows", "cols",
 *  "pipes": true for three pipes instead of a terminal}
 * -> {"terminal", "id", "mode": "pty" or "pipe", "closed", "replay_offset", "stdin", "stdout", "stderr"}.
 * "id" is what other processes attach to; the last three are streams, without STREAM_OPEN. Input is what is written to
 * "stdin"; "stdout" has all output of a terminal. The outputs end with the process. NGS_EFAILED tells that output was
 * lost, and can be read past, or, again and again, that the session ended in another way, for example taken over. A
 * session whose output is not read holds its process back.
 */
#define NGS_OP_PTY_OPEN 20
/*
 * {"sandbox", "id", "takeover": true to evict its holder, "since"} -> the same. What is retained of the output from the
 * byte offset "since" on is read first; "replay_offset" is where that began, absent when there was none.
 */
#define NGS_OP_PTY_ATTACH 21
#define NGS_OP_PTY_RESIZE 22 /* {"terminal", "rows", "cols"} */
#define NGS_OP_PTY_SIGNAL 23 /* {"terminal", "signal": "SIGINT"}: to its process group, after what was written */
#define NGS_OP_PTY_WAIT 24   /* {"terminal"} -> {"exit_code"}, also as aux; 128+n for death by signal n */
/*
 * {"terminal"}: lets go of the session, which goes on. Nothing can be read and written bytes wait until REATTACH, which
 * goes on where the reading stopped. Both answer as INFO. Pausing a sandbox does so for its terminals, and resuming it
 * takes them up again.
 */
#define NGS_OP_PTY_DETACH 25
#define NGS_OP_PTY_REATTACH 26 /* {"terminal"} */
#define NGS_OP_PTY_INFO 27     /* {"terminal"} -> {"id", "mode", "closed", "replay_offset"} */
/*
 * {"terminal"}: ends a session that was opened, lets go of one that was attached to, and closes its streams. It is not
 * cancelled. Repeating it is no error.
 */
#define NGS_OP_PTY_CLOSE 28
/*
 * A session without a sandbox, by the address of the daemon that serves it: {"provider", "url", "headers": {}, "timeout_s":
 * of each request (0: the provider's)} with "id", "takeover", "since" to attach, and "pipes" for one that nobody has started
 * yet; else with "command", "cwd", "rows", "cols", "pipes" to open one -> as PTY_OPEN.
 */
#define NGS_OP_PTY_DIAL 29
/*
 * {"provider", "after", "run", "user"}: the sandboxes of all processes, or of one run or user, by id, from the one after "after"
 * on -> {"sandboxes": [{"sandbox_id", "provider", "run", "user" ("" where the backend keeps none), "host", "pid",
 *  "owner": "alive", "dead" or "unknown", "created_at", "expires_at" (seconds since 1970, 0:
 *  none), "status", "leftover": nothing but files is left, "kept": why it should not be reaped, "" when it can be}],
 *  "more": true when another call is needed}
 */
#define NGS_OP_LIST 32
/*
 * {"provider", "id"}: ends a sandbox, whoever uses it, and removes all of it; one that is gone is no error. Without an id it
 * forgets what dead processes noted about sandboxes that are gone.
 */
#define NGS_OP_REAP 33
#define NGS_OP_EXAMINE 34 /* {"provider"} -> {"facts": [{"name", "value", "origin", "problem"}]}: what it works with */
#define NGS_OP_TEST 1000       /* provokes faults; only with NGS_TEST_HOOKS=1 in the environment */

/* ---- the library ---------------------------------------------------------------------------------------------------- */

/* NGS_ABI_MAJOR << 16 | NGS_ABI_MINOR of the library. */
uint32_t ngs_abi_version(void);

/* Copies a JSON text about the build into buf, cut at cap bytes. Answers the text's whole length. */
int64_t ngs_build_info(char *buf, uint64_t cap);

/* The text of a code; "unknown code" for others. It is static. */
const char *ngs_strerror(int64_t code);

/*
 * How ngs_event lies in memory, for callers that do not compile this header: its size, then the offsets of id, len, kind,
 * flags, status and aux. Writes at most n numbers and answers how many there are.
 */
int64_t ngs_layout(uint32_t *out, uint64_t n);

/* Gives SA_ONSTACK to signal handlers that lack it, which Go needs. Answers how many. ngs_runtime_start does it as well. */
int32_t ngs_fix_onstack(void);

/*
 * Starts the library. cfg may be empty, or {"abi": NGS_ABI_MAJOR << 16 | NGS_ABI_MINOR, "log_level": -4|0|4|8}. Repeating
 * it changes nothing. Go gets at least 8 threads to run code on, since a caller's loop waits when none is free; the
 * environment variable GOMAXPROCS overrules that.
 */
int32_t ngs_runtime_start(const char *cfg, uint64_t len);

/*
 * Tells the library what the environment (environ) is now. Go reads it once, as it was when the process began; what a
 * program changed since, such as DOCKER_HOST, counts after this call. ngs_runtime_start does it as well. Not to be called
 * while another thread changes the environment.
 */
int32_t ngs_sync_environ(void);

/*
 * Cancels everything, closes bridges and providers, and waits for that at most timeout_ms. Sandboxes are not stopped.
 * Afterwards calls answer NGS_ECLOSED or NGS_EBADHANDLE.
 */
int32_t ngs_shutdown(int64_t timeout_ms);

/* Copies a JSON text about what is open, and about faults, into buf, cut at cap bytes. Answers its whole length. */
int64_t ngs_stats(char *buf, uint64_t cap);

/* ---- objects -------------------------------------------------------------------------------------------------------- */

/*
 * Makes a provider from its name and configuration (a JSON object), without contacting what is behind it. Answers its
 * handle. On failure answers a code or NGS_KIND_* and copies the failure's JSON, terminated by a zero, into err.
 * It may read configuration files. Providers belong to the process: every bridge can use them.
 */
int64_t ngs_provider_new(const char *name, uint64_t name_len, const char *config, uint64_t config_len, char *err,
			 uint64_t err_cap);

/*
 * Lets go of a provider, sandbox or terminal that nobody will use any more. Does not wait. A sandbox is not stopped: it
 * lives on by its own rules, and so does a terminal. A handle that is no longer valid is no error.
 */
int32_t ngs_release(int64_t handle);

/* ---- bridges -------------------------------------------------------------------------------------------------------- */

/* Opens a bridge and answers its handle, which is positive. */
int64_t ngs_bridge_new(void);

/* The descriptor that is readable while events wait. It belongs to the bridge; poll it and do nothing else with it. */
int32_t ngs_bridge_fd(int64_t bridge);

/* Cancels the bridge's operations, lets go of its terminals and closes its streams. Their events are lost. Repeating it is no error. */
int32_t ngs_bridge_close(int64_t bridge);

/* Called with the pointer that was registered with it. */
typedef void (*ngs_notify_fn)(void *user);

/*
 * Calls fn(user) whenever events have come, for callers without a loop that polls. It is called on one thread that the
 * library makes for the bridge; fn may drain and submit. Events may come in one call, and a call may find none. The
 * descriptor works as well. fn NULL ends it: when that call returns fn is not running and will not be called, unless it
 * was made from fn itself. ngs_bridge_close ends it likewise. Both wait for a running fn.
 */
int32_t ngs_set_notify(int64_t bridge, ngs_notify_fn fn, void *user);

/*
 * Starts an operation under an id of the caller's choice that no operation in flight on this bridge has. req is copied.
 * NGS_EAGAIN when too many results wait to be drained.
 */
int32_t ngs_submit(int64_t bridge, uint64_t id, uint32_t op, const void *req, uint64_t len);

/* Asks an operation to end early; its DONE still comes. No error when it is over. */
int32_t ngs_cancel(int64_t bridge, uint64_t id);

/*
 * Copies events into buf and answers how many bytes they take, 0 when there are none. It stops after about 16 KiB, so
 * that a loop is not held; the descriptor stays readable while events are left. NGS_ETOOSMALL does not happen with a
 * buffer of NGS_EVENT_MAX.
 */
int64_t ngs_drain(int64_t bridge, void *buf, uint64_t cap);

/* ---- streams -------------------------------------------------------------------------------------------------------- */

/*
 * Copies bytes out of a stream, at most 1 MiB. 0 means that there are none yet: one READABLE event will come. NGS_EOF
 * means that none will come. A stream that is not read fills up, and then its command waits. NGS_EFAILED is for outputs of
 * terminals.
 */
int64_t ngs_stream_read(int64_t stream, void *buf, uint64_t cap);

/*
 * Gives bytes to a command's input and answers how many were taken. Fewer than len means that one WRITABLE event will
 * come. NGS_ECLOSED means that the command reads no more. NGS_EFAILED is for inputs of terminals: something that was
 * written before got lost, or the session has ended.
 */
int64_t ngs_stream_write(int64_t stream, const void *buf, uint64_t len);

/*
 * Copies into buf why the last read or write of a stream answered NGS_EFAILED, as the JSON of a failed operation, cut at
 * cap bytes. Answers its whole length, 0 when none did.
 */
int64_t ngs_stream_error(int64_t stream, char *buf, uint64_t cap);

/* Ends a command's input. */
int32_t ngs_stream_close_write(int64_t stream);

/* Frees a stream. A command that writes to it sees a closed pipe. Repeating it is no error. */
int32_t ngs_stream_close(int64_t stream);

#ifdef __cplusplus
}
#endif

#endif
