/* What the agent says of an ordinary container, taken apart with every length and number checked. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/mount.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "plain.h"
#include "program.h"
#include "proto.h"
#include "wire.h"

#define ATTRS                                                                                                \
	(MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | MOUNT_ATTR__ATIME | \
	 MOUNT_ATTR_NOSYMFOLLOW)

/* next_text takes a string and the NUL at its end; NULL when there is none. */
static const char *next_text(const char **p, const char *end)
{
	const char *s = *p, *nul = s < end ? memchr(s, 0, (size_t)(end - s)) : NULL;
	if (!nul)
		return NULL;
	*p = nul + 1;
	return s;
}

/* take_mount reads one TAG_MOUNT. It is copied, since what is sent is not aligned. */
static int take_mount(struct place_mount *m, struct span v)
{
	struct {
		uint32_t kind, flags;
		uint64_t set, clear, below, spread;
	} head;
	if (v.n < sizeof head)
		return -1;
	memcpy(&head, v.p, sizeof head);
	if (head.kind < MOUNT_BIND || head.kind > MOUNT_UNIFIED || (head.flags & ~MOUNT_F_ALL) ||
	    ((head.set | head.clear | head.below) & ~(uint64_t)ATTRS))
		return -1;
	char *copy = malloc(v.n);
	if (!copy)
		return -1;
	memcpy(copy, v.p, v.n);
	const char *p = copy + sizeof head, *end = copy + v.n;
	*m = (struct place_mount){ .kind = head.kind, .flags = head.flags, .set = head.set, .clear = head.clear,
				   .below = head.below, .spread = head.spread };
	m->target = next_text(&p, end);
	m->source = next_text(&p, end);
	if (!m->target || !m->source || m->target[0] != '/' || !m->target[1])
		return -1;
	m->data = p;
	for (; p < end; m->ndata++)
		if (!next_text(&p, end))
			return -1;
	return 0;
}

static uint32_t count(const struct msg *m, enum tag t)
{
	size_t at = 0;
	struct span v;
	uint32_t n = 0;
	while (tag_next(m, &at, t, &v))
		n++;
	return n;
}

/* paths_valid says whether all of a tag are absolute paths. */
static int paths_valid(const struct msg *m, enum tag t)
{
	size_t at = 0;
	struct span v;
	while (tag_next(m, &at, t, &v))
		if (v.n < 2 || v.n >= 4096 || v.p[0] != '/' || memchr(v.p, 0, v.n))
			return 0;
	return 1;
}

int plain_parse(struct plain *s)
{
	const struct msg *m = s->m;
	size_t at = 0;
	struct span v;
	uint32_t n = 0;
	if (program_parse(s->p, m) < 0)
		return -1;
	s->nmounts = count(m, TAG_MOUNT);
	s->root = span_dup(tag_str(m, TAG_ROOT));
	s->readonly = tag_u32(m, TAG_ROOTRO) != 0;
	if (s->p->apparmor || s->p->selinux)
		return program_bad(s->p, "labels are not known");
	if (!s->root || s->root[0] != '/' || !s->p->cwd || !s->p->has_caps || s->nmounts > PLAINMAX ||
	    !paths_valid(m, TAG_MASKED) || !paths_valid(m, TAG_READONLY) || !paths_valid(m, TAG_CGROUP) ||
	    count(m, TAG_MASKED) > PLAINMAX || count(m, TAG_READONLY) > PLAINMAX || count(m, TAG_CGROUP) == 0)
		return program_bad(s->p, "order is not valid");
	s->mounts = calloc(s->nmounts + 1, sizeof *s->mounts);
	if (!s->mounts)
		return program_bad(s->p, "read order: %s", strerror(ENOMEM));
	while (tag_next(m, &at, TAG_MOUNT, &v))
		if (take_mount(&s->mounts[n++], v) < 0)
			return program_bad(s->p, "mount is not valid");
	return 0;
}
