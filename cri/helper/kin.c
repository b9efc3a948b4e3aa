/*
 * Whom entry processes have started, in memory that the keeper has in common with
 * them. The kernel writes the number of a child there before that runs, so the
 * keeper knows of each, also when the entry process is killed right after the
 * birth; to look for children in /proc says nothing of one that is just born. And
 * what is to be born after an exec was given up finds that said there.
 */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>

#include "kin.h"

#define KINSIZE (64 * 1024) /* of which there is what was written to */
#define KINMAX (KINSIZE / sizeof(struct kin))

static struct kin *all;

/* kin_new returns NULL when there are too many. */
struct kin *kin_new(void)
{
	if (!all) {
		void *p = mmap(NULL, KINSIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (p == MAP_FAILED)
			return NULL;
		all = p;
	}
	for (size_t i = 0; i < KINMAX; i++)
		if (!all[i].used) {
			all[i] = (struct kin){ .used = 1 };
			return &all[i];
		}
	return NULL;
}

void kin_free(struct kin *k)
{
	k->used = 0;
}

/* kin_hide keeps it from what is born in a container. */
int kin_hide(void)
{
	return madvise(all, KINSIZE, MADV_DONTFORK);
}

/*
 * kin_give_up has nobody started any more. Who has read before that an exec is
 * not given up was written down before, so it is found there from now on.
 */
void kin_give_up(struct kin *k)
{
	__atomic_store_n(&k->given_up, 1, __ATOMIC_SEQ_CST);
}
