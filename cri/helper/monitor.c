/*
 * The Go runtime's monitor. It is the first thread that the runtime creates, and
 * as long as others run it sleeps for 20 microseconds and looks around. With the
 * kernel's usual slack that is some 14,000 times a second, and a tenth of the CPU
 * time of a launcher or of an init, which live for milliseconds. All it is needed
 * for there is to let another goroutine run where one stays in a system call.
 *
 * So it has more slack: threads, and processes, are born with that of the thread
 * that creates them. Nobody else has it, above all not the program of a
 * container.
 */

//go:build !asan

#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <sys/prctl.h>

#define MONITOR_SLACK_NS 1000000ul

static unsigned long usual; /* the slack of all others; 0 before there is a monitor */

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg);

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg)
{
	unsigned long own = (unsigned long)prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0), child = usual;
	if (!usual) {
		usual = own;
		child = MONITOR_SLACK_NS;
		/* Each thread of Go frees what told it to begin, for which malloc would map it an arena of its own. */
		mallopt(M_ARENA_MAX, 1);
	}
	if (own != child)
		prctl(PR_SET_TIMERSLACK, child, 0, 0, 0);
	int err = __real_pthread_create(t, a, f, arg);
	if (own != child)
		prctl(PR_SET_TIMERSLACK, own, 0, 0, 0);
	return err;
}
