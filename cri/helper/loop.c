/*
 * The loop: descriptors that are waited for over epoll, one event at a time, and
 * the buffers for what is read from them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "loop.h"

static int epfd = -1;
static char *scratch;

int loop_open(void)
{
	epfd = epoll_create1(EPOLL_CLOEXEC);
	return epfd;
}

/*
 * loop_turn handles one event, or none within idle milliseconds, and says how many
 * it was; -1 is an error. It is one at a time since a handler may free any other
 * source.
 */
int loop_turn(int idle)
{
	struct epoll_event ev;
	int n;
	while ((n = epoll_wait(epfd, &ev, 1, idle)) < 0 && errno == EINTR)
		;
	if (n > 0) {
		struct source *s = ev.data.ptr;
		s->ready(s, ev.events);
	}
	return n;
}

void source_add(struct source *s, int fd, uint32_t events, void (*ready)(struct source *, uint32_t))
{
	struct epoll_event ev = { .events = events, .data.ptr = s };
	s->fd = fd;
	s->events = events;
	s->ready = ready;
	epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev);
}

/* source_pause keeps the descriptor, out of the loop, until source_resume. */
void source_pause(struct source *s)
{
	if (s->events && s->fd >= 0)
		epoll_ctl(epfd, EPOLL_CTL_DEL, s->fd, NULL);
	s->events = 0;
}

void source_resume(struct source *s, uint32_t events)
{
	if (s->events == 0 && s->fd >= 0)
		source_add(s, s->fd, events, s->ready);
}

/*
 * source_del takes a descriptor out of the loop before it closes it: a child
 * that was just forked may still hold a copy, and epoll would go on telling of
 * it, with a pointer to what is freed.
 */
void source_del(struct source *s)
{
	if (s->fd < 0)
		return;
	source_pause(s);
	close(s->fd);
	s->fd = -1;
}

/* The buffers for input and output. An idle keeper gives their pages back. */
static void scratch_get(void)
{
	if (scratch)
		return;
	void *p = mmap(NULL, 2 * SCRATCH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		_exit(1);
	scratch = p;
}

char *scratch_in(void)
{
	scratch_get();
	return scratch;
}

char *scratch_out(void)
{
	scratch_get();
	return scratch + SCRATCH;
}

void scratch_free(void)
{
	if (scratch)
		munmap(scratch, 2 * SCRATCH);
	scratch = NULL;
}

int scratch_held(void)
{
	return scratch != NULL;
}
