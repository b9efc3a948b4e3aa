/* The fields of MSG_EXEC, of which a program is made. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "../program.h"
#include "../proto.h"
#include "../wire.h"

/* A process of exec has no need to free what it takes; a target has. */
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
#include "../program.c"
#undef malloc
#undef calloc

#include "fuzz.h"

static void check_list(char **list)
{
	for (; *list; list++)
		CHECK(strlen(*list) < PROTO_PAYLOAD);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct msg m = { .p = (const char *)data, .n = n };
	struct program *p = calloc(1, sizeof *p);
	CHECK(p);
	if (msg_valid(m.p, m.n) && program_parse(p, &m) == 0) {
		check_list(p->argv);
		check_list(p->envp);
		for (size_t i = 0; i < p->ngroups; i++)
			(void)*(volatile uint32_t *)&p->groups[i];
		CHECK(!p->cwd || strlen(p->cwd) <= n);
		CHECK(p->nseccomp == 0 || (p->seccomp >= m.p && p->seccomp + p->nseccomp <= m.p + m.n));
	}
	CHECK(memchr(p->err, 0, sizeof p->err));
	free(p);
	for (struct taken *t; (t = all); free(t))
		all = t->next;
	return 0;
}
