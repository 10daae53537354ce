/*
 * Uses the library as a stranger would, with nothing but ngs.h: makes a sandbox, runs commands in it by callback and by
 * poll, reads a stream, cancels, and looks at what is refused. Exits 0 when all was as documented.
 */
#define _POSIX_C_SOURCE 200809L

#include "ngs.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(ok, ...) \
	do { \
		if (!(ok)) { \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #ok); \
			fprintf(stderr, __VA_ARGS__); \
			fprintf(stderr, "\n"); \
			exit(1); \
		} \
	} while (0)

enum { PATIENCE_MS = 20000 };

static _Alignas(8) char events[NGS_EVENT_MAX];

/* The event that wait_for found, its payload terminated by a zero. */
static ngs_event found;
static char payload[NGS_EVENT_MAX];

/* Takes one batch and tells whether it holds an event of a kind for an id. */
static int take(int64_t bridge, uint16_t kind, uint64_t id)
{
	int64_t n = ngs_drain(bridge, events, sizeof events);
	int hit = 0;
	CHECK(n >= 0, "%s", ngs_strerror(n));
	for (int64_t at = 0; at < n;) {
		ngs_event e;
		memcpy(&e, events + at, sizeof e);
		if (e.kind == kind && e.id == id) {
			found = e;
			memcpy(payload, events + at + sizeof e, e.len);
			payload[e.len] = 0;
			hit = 1;
		}
		at += (int64_t)(sizeof e + ((e.len + 7) & ~7u));
	}
	return hit;
}

/* Waits for an event by poll. Events of other operations are dropped, so one at a time is in flight here. */
static void wait_for(int64_t bridge, uint16_t kind, uint64_t id)
{
	struct pollfd p = {.fd = ngs_bridge_fd(bridge), .events = POLLIN};
	do CHECK(poll(&p, 1, PATIENCE_MS) == 1, "event %d of %" PRIu64 " did not come", kind, id);
	while (!take(bridge, kind, id));
}

static uint64_t submit(int64_t bridge, uint32_t op, const char *request)
{
	static uint64_t id;
	int32_t code = ngs_submit(bridge, ++id, op, request, strlen(request));
	CHECK(code == NGS_OK, "%s", ngs_strerror(code));
	return id;
}

static int64_t number(const char *key)
{
	char quoted[64];
	snprintf(quoted, sizeof quoted, "\"%s\":", key);
	const char *at = strstr(payload, quoted);
	CHECK(at, "no %s in %s", key, payload);
	return strtoll(at + strlen(quoted), NULL, 10);
}

/* What a notify callback shares with main. */
struct seen {
	pthread_mutex_t mu;
	pthread_cond_t changed;
	int calls;
	pthread_t thread; /* that called last, if one is known */
	int known;
	int threads; /* how many there were */
};

static void on_events(void *user)
{
	struct seen *s = user;
	pthread_mutex_lock(&s->mu);
	if (!s->known || !pthread_equal(s->thread, pthread_self())) s->threads++;
	s->known = 1;
	s->thread = pthread_self();
	s->calls++;
	pthread_cond_signal(&s->changed);
	pthread_mutex_unlock(&s->mu);
}

static void wait_for_call(struct seen *s)
{
	struct timespec end;
	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += PATIENCE_MS / 1000;
	pthread_mutex_lock(&s->mu);
	while (s->calls == 0) CHECK(pthread_cond_timedwait(&s->changed, &s->mu, &end) == 0, "the callback did not come");
	pthread_mutex_unlock(&s->mu);
}

static int64_t self_ending;

/* Ends its own notification from within, and says so. */
static void end_itself(void *user)
{
	CHECK(ngs_set_notify(self_ending, NULL, NULL) == NGS_OK, "from the callback");
	on_events(user);
}

static void notify(int64_t bridge)
{
	static struct seen s = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
	int calls = 0;
	CHECK(ngs_set_notify(bridge, on_events, &s) == NGS_OK, "set");
	for (int i = 0; i < 20; i++) {
		uint64_t id = submit(bridge, NGS_OP_NOOP, "");
		wait_for_call(&s);
		wait_for(bridge, NGS_EVENT_DONE, id);
		pthread_mutex_lock(&s.mu);
		calls += s.calls;
		s.calls = 0;
		pthread_mutex_unlock(&s.mu);
	}
	CHECK(ngs_set_notify(bridge, NULL, NULL) == NGS_OK, "end");
	CHECK(calls >= 20 && s.threads == 1, "%d calls from %d threads", calls, s.threads);
	s.calls = 0; /* nobody else is there */
	wait_for(bridge, NGS_EVENT_DONE, submit(bridge, NGS_OP_NOOP, ""));
	CHECK(s.calls == 0, "called after its end");

	self_ending = bridge;
	CHECK(ngs_set_notify(bridge, end_itself, &s) == NGS_OK, "set again");
	uint64_t id = submit(bridge, NGS_OP_NOOP, "");
	wait_for_call(&s);
	wait_for(bridge, NGS_EVENT_DONE, id);
	CHECK(s.calls == 1, "%d calls", s.calls);
}

int main(void)
{
	char err[1024], request[1024], text[64];

	CHECK(ngs_abi_version() >> 16 == NGS_ABI_MAJOR, "%x", ngs_abi_version());
	CHECK(ngs_bridge_new() == NGS_ENOTSTARTED, "before the start");
	snprintf(request, sizeof request, "{\"abi\":%d}", (NGS_ABI_MAJOR + 1) << 16);
	CHECK(ngs_runtime_start(request, strlen(request)) == NGS_EABI, "another version");
	setenv("NGS_TEST_HOOKS", "1", 1); /* the library sees what the environment is now, not what it was at the beginning */
	CHECK(ngs_runtime_start("", 0) == NGS_OK, "start");
	CHECK(ngs_runtime_start("", 0) == NGS_OK, "again");
	uint32_t layout[7];
	CHECK(ngs_layout(layout, 7) == 7 && layout[0] == sizeof(ngs_event), "layout");

	int64_t bridge = ngs_bridge_new();
	CHECK(bridge > 0, "%s", ngs_strerror(bridge));

	CHECK(ngs_provider_new("nope", 4, "{}", 2, err, sizeof err) == NGS_KIND_INVALID, "%s", err);
	CHECK(strstr(err, "Unknown sandbox provider"), "%s", err);
	CHECK(ngs_provider_new("mem", 3, "{\"x\":1}", 7, err, 20) == NGS_KIND_UNKNOWN_KEY, "%s", err);
	CHECK(strlen(err) == 19, "cut and terminated: %s", err);
	int64_t provider = ngs_provider_new("mem", 3, "{}", 2, err, sizeof err);
	CHECK(provider > 0, "%s", err);

	snprintf(request, sizeof request, "{\"provider\":%" PRId64 ",\"spec\":{\"env\":{\"A\":\"b\"}}}", provider);
	wait_for(bridge, NGS_EVENT_DONE, submit(bridge, NGS_OP_CREATE, request));
	CHECK(found.status == NGS_OK, "%s", payload);
	int64_t sandbox = number("sandbox");

	/* A command with collected output: a length, JSON, stdout, stderr. */
	snprintf(request, sizeof request, "{\"sandbox\":%" PRId64 ",\"command\":\"env A; echo e >&2; exit 3\"}", sandbox);
	wait_for(bridge, NGS_EVENT_DONE, submit(bridge, NGS_OP_EXEC, request));
	CHECK(found.status == NGS_OK && found.flags == NGS_FLAG_FRAMED && found.aux == 3, "%d", found.status);
	uint32_t json;
	memcpy(&json, payload, sizeof json);
	CHECK(strcmp(payload + sizeof json + json, "b\ne\n") == 0, "%s", payload + sizeof json);

	/* A command that is talked to. */
	snprintf(request, sizeof request, "{\"sandbox\":%" PRId64 ",\"command\":\"cat\",\"stdin\":true,\"stdout\":\"stream\"}", sandbox);
	uint64_t id = submit(bridge, NGS_OP_EXEC, request);
	int64_t in = 0, out = 0;
	struct pollfd p = {.fd = ngs_bridge_fd(bridge), .events = POLLIN};
	while (!in || !out) {
		CHECK(poll(&p, 1, PATIENCE_MS) == 1, "no streams");
		int64_t n = ngs_drain(bridge, events, sizeof events);
		for (int64_t at = 0; at < n;) {
			ngs_event e;
			memcpy(&e, events + at, sizeof e);
			CHECK(e.kind == NGS_EVENT_STREAM_OPEN && e.id == id && e.len == 8, "kind %d", e.kind);
			memcpy(e.aux ? &out : &in, events + at + sizeof e, 8);
			at += (int64_t)sizeof e + 8;
		}
	}
	CHECK(ngs_stream_read(out, text, sizeof text) == 0, "nothing yet");
	CHECK(ngs_stream_write(in, "typed", 5) == 5, "write");
	wait_for(bridge, NGS_EVENT_READABLE, (uint64_t)out);
	CHECK(ngs_stream_read(out, text, sizeof text) == 5 && memcmp(text, "typed", 5) == 0, "read");
	CHECK(ngs_stream_close_write(in) == NGS_OK, "end of input");
	wait_for(bridge, NGS_EVENT_DONE, id);
	CHECK(found.status == NGS_OK && found.aux == 0, "%s", payload);
	CHECK(ngs_stream_read(out, text, sizeof text) == NGS_EOF, "end of output");
	CHECK(ngs_stream_close(out) == NGS_OK && ngs_stream_close(out) == NGS_OK && ngs_stream_close(in) == NGS_OK, "close");
	CHECK(ngs_stream_read(out, text, sizeof text) == NGS_EBADHANDLE, "closed");

	/* Cancelling. */
	snprintf(request, sizeof request, "{\"sandbox\":%" PRId64 ",\"command\":\"sleep 1000\"}", sandbox);
	id = submit(bridge, NGS_OP_EXEC, request);
	CHECK(ngs_submit(bridge, id, NGS_OP_NOOP, "", 0) == NGS_EEXISTS, "the same id");
	CHECK(ngs_cancel(bridge, id) == NGS_OK, "cancel");
	wait_for(bridge, NGS_EVENT_DONE, id);
	CHECK(found.status == NGS_KIND_CANCELED, "%s", payload);

	/* A fault of the library is an error. */
	wait_for(bridge, NGS_EVENT_DONE, submit(bridge, NGS_OP_TEST, "{\"what\":\"nil\"}"));
	CHECK(found.status == NGS_EPANIC, "%s", payload);

	notify(bridge);

	/* A child has none of the library's threads. */
	pid_t child = fork();
	if (child == 0) _exit(ngs_submit(bridge, 999, NGS_OP_NOOP, "", 0) == NGS_EFORKED && ngs_bridge_new() == NGS_EFORKED ? 0 : 1);
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d", status);

	snprintf(request, sizeof request, "{\"sandbox\":%" PRId64 "}", sandbox);
	wait_for(bridge, NGS_EVENT_DONE, submit(bridge, NGS_OP_STOP, request));
	CHECK(found.status == NGS_OK, "%s", payload);
	CHECK(ngs_release(sandbox) == NGS_OK && ngs_release(provider) == NGS_OK && ngs_release(provider) == NGS_OK, "release");
	CHECK(ngs_bridge_close(bridge) == NGS_OK && ngs_bridge_close(bridge) == NGS_OK, "close");
	CHECK(ngs_drain(bridge, events, sizeof events) == NGS_EBADHANDLE, "closed");
	char stats[16384] = "";
	CHECK(ngs_stats(stats, sizeof stats - 1) > 0, "stats");
	CHECK(strstr(stats, "\"bridges\":0,\"operations\":0,\"streams\":0,\"providers\":0,\"sandboxes\":0,\"panics\":1"), "%s", stats);
	CHECK(ngs_shutdown(1000) == NGS_OK, "shutdown");
	CHECK(ngs_bridge_new() == NGS_ECLOSED, "after the end");
	return 0;
}
