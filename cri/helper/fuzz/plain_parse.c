/* The fields of MSG_RUN, of which an ordinary container is made. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "../plain.h"
#include "../program.h"
#include "../proto.h"
#include "../wire.h"

/* A process that makes a container has no need to free what it takes; a target has. */
static struct taken {
	struct taken *next;
} *all;

static void *take(size_t n, size_t each)
{
	struct taken *t = calloc(1, sizeof *t + n * each);
	if (!t)
		return NULL;
	t->next = all;
	all = t;
	return t + 1;
}

#define malloc(n) take(1, n)
#define calloc(n, each) take(n, each)
#include "../plain_parse.c"
#undef malloc
#undef calloc

#include "fuzz.h"

static void check_mount(const struct place_mount *m, size_t n)
{
	CHECK(m->kind >= MOUNT_BIND && m->kind <= MOUNT_GROUPS);
	CHECK(m->target[0] == '/' && strlen(m->target) + strlen(m->source) <= n);
	const char *o = m->data;
	for (uint32_t i = 0; i < m->ndata; i++, o += strlen(o) + 1)
		CHECK(strlen(o) <= n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct msg m = { .p = (const char *)data, .n = n };
	struct program *p = calloc(1, sizeof *p + 2 * n + 4096);
	CHECK(p);
	p->room = (struct arena){ (char *)(p + 1), 2 * n + 4096 };
	struct plain s = { .m = &m, .p = p };
	if (msg_valid(m.p, m.n) && plain_parse(&s) == 0) {
		CHECK(s.root[0] == '/' && s.nmounts <= PLAINMAX && p->cwd && p->argv[0]);
		for (uint32_t i = 0; i < s.nmounts; i++)
			check_mount(&s.mounts[i], n);
	}
	CHECK(memchr(p->err, 0, sizeof p->err));
	free((char *)s.root);
	free(p);
	for (struct taken *t; (t = all); free(t))
		all = t->next;
	return 0;
}
