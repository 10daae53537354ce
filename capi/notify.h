/* What ngs.c offers to the Go side of the library. Not for users. */
#ifndef NGS_NOTIFY_H
#define NGS_NOTIFY_H

#include "ngs.h"

/* Starts a thread that runs ngsgo_notify_loop(ref). Its number is stored in *thread. Answers an errno. */
int ngs_start_notify_thread(void *ref, unsigned long *thread);

/* Waits for that thread to end, or lets go of it when it is the calling thread. */
void ngs_end_notify_thread(unsigned long thread);

/* Calls fn(user). The pointer comes as a number, so that Go never takes a caller's cookie for a pointer of its own. */
void ngs_call_notify(ngs_notify_fn fn, uintptr_t user);

#endif
