/*
 * Container logs in the CRI format, "<time> <stream> <P|F> <content>", rotated
 * by size while they are written: a limit that is only looked at from time to
 * time is none at 100 MB/s.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "loop.h"
#include "proto.h"
#include "state.h"
#include "sys.h"

#define STAMP 30 /* 2006-01-02T15:04:05.000000000Z */

/*
 * date_time prints a time in UTC. The C library's way would first read the
 * time zone, which costs more memory than all the rest of the keeper.
 */
static void date_time(int64_t t, const char *fmt, char *buf, size_t size)
{
	int64_t days = t / 86400, sec = t % 86400;
	/* Days since 0000-03-01, so that a leap day is the last of its year. */
	int64_t z = days + 719468, era = z / 146097, doe = z % 146097;
	int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
	int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100), mp = (5 * doy + 2) / 153;
	int64_t month = mp < 10 ? mp + 3 : mp - 9;
	snprintf(buf, size, fmt, (int)(yoe + era * 400 + (month <= 2)), (int)month,
		 (int)(doy - (153 * mp + 2) / 5 + 1), (int)(sec / 3600), (int)(sec / 60 % 60), (int)(sec % 60));
}

int log_open(struct log *l)
{
	struct stat st;
	l->fd = -1;
	if (!l->path)
		return 0;
	/* Whoever has the directory of logs mounted may put a FIFO there that nobody reads: to open it must not wait. */
	int fd = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0640);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
		close(fd);
		return -EINVAL;
	}
	l->fd = fd;
	l->size = st.st_size;
	return 0;
}

void log_close(struct log *l)
{
	if (l->fd >= 0)
		close(l->fd);
	l->fd = -1;
}

/* log_prune keeps the newest of the renamed files; their names sort by age. */
static void log_prune(struct log *l)
{
	char dir[PATH_MAX], oldest[NAME_MAX + 1];
	const char *base = strrchr(l->path, '/');
	if (!base || (size_t)(base - l->path) >= sizeof dir)
		return;
	memcpy(dir, l->path, (size_t)(base - l->path));
	dir[base - l->path] = 0;
	base++;
	size_t n = strlen(base);
	for (;;) {
		uint32_t count = 0;
		struct dirent *e;
		DIR *d = opendir(*dir ? dir : "/");
		if (!d)
			return;
		while ((e = readdir(d))) {
			if (strncmp(e->d_name, base, n) != 0 || e->d_name[n] != '.')
				continue;
			if (count++ == 0 || strcmp(e->d_name, oldest) < 0)
				strcpy(oldest, e->d_name);
		}
		int err = count >= l->files ? unlinkat(dirfd(d), oldest, 0) : 1;
		closedir(d);
		/* The current file is one of those to keep. */
		if (err != 0 || count <= l->files)
			return;
	}
}

static void log_rotate(struct log *l)
{
	char name[PATH_MAX], stamp[40];
	int64_t now = time(NULL);
	date_time(now, "%04d%02d%02d-%02d%02d%02d", stamp, sizeof stamp);
	if (now != l->rotated) {
		l->rotated = now;
		l->seq = 0;
	}
	for (;; l->seq++) {
		/* A second may see several: the number keeps them in order. */
		int n = l->seq ? snprintf(name, sizeof name, "%s.%s-%06d", l->path, stamp, l->seq)
			       : snprintf(name, sizeof name, "%s.%s", l->path, stamp);
		if (n < 0 || (size_t)n >= sizeof name)
			return;
		if (renameat2(AT_FDCWD, l->path, AT_FDCWD, name, RENAME_NOREPLACE) == 0) {
			l->seq++;
			break;
		}
		if (errno != EEXIST) {
			/* Somebody took the file away: a new one is due anyhow. */
			if (errno != ENOENT)
				return;
			break;
		}
	}
	log_close(l);
	log_open(l);
	if (l->files)
		log_prune(l);
}

/*
 * log_flush writes what is buffered. What there is no room for is dropped and
 * counted: the container must not wait for a full disk. A line cut by it is
 * taken back, since readers could not make sense of it.
 */
void log_flush(struct log *l)
{
	char *out = scratch_out();
	size_t n = l->buffered;
	l->buffered = 0;
	if (n == 0)
		return;
	if (l->fd < 0 && log_open(l) < 0) {
		l->lost += l->lines;
		l->lines = 0;
		return;
	}
	if (write_all(l->fd, out, n) < 0) {
		l->lost += l->lines;
		if (ftruncate(l->fd, l->size) < 0) {
			struct stat st;
			if (fstat(l->fd, &st) == 0)
				l->size = st.st_size;
		}
	} else {
		l->size += (int64_t)n;
	}
	l->lines = 0;
}

static const char *stamp_now(char *buf)
{
	static int64_t last = -1;
	static char text[40];
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	if (t.tv_sec != last) {
		date_time(t.tv_sec, "%04d-%02d-%02dT%02d:%02d:%02d.", text, sizeof text);
		last = t.tv_sec;
	}
	memcpy(buf, text, 20);
	long ns = t.tv_nsec;
	for (int i = 28; i >= 20; i--, ns /= 10)
		buf[i] = (char)('0' + ns % 10);
	buf[29] = 'Z';
	return buf;
}

static void log_line(struct log *l, const char *stamp, int stream, char kind, const char *a, size_t na, const char *b,
		     size_t nb)
{
	size_t len = STAMP + 1 + 6 + 1 + 1 + 1 + na + nb + 1;
	if (l->max && l->size + (int64_t)(l->buffered + len) > l->max && l->size + (int64_t)l->buffered > 0) {
		log_flush(l);
		if (l->size > 0)
			log_rotate(l);
	}
	if (l->buffered + len > SCRATCH)
		log_flush(l);
	char *p = scratch_out() + l->buffered;
	memcpy(p, stamp, STAMP);
	p += STAMP;
	memcpy(p, stream == STREAM_STDERR ? " stderr " : " stdout ", 8);
	p += 8;
	*p++ = kind;
	*p++ = ' ';
	if (na)
		memcpy(p, a, na);
	p += na;
	memcpy(p, b, nb);
	p += nb;
	*p = '\n';
	l->buffered += len;
	l->lines++;
}

/* log_tell_lost says how much was dropped as soon as something can be written. */
static void log_tell_lost(struct log *l, const char *stamp)
{
	char text[96];
	uint64_t lost = l->lost;
	if (lost == 0 || l->fd < 0)
		return;
	int n = snprintf(text, sizeof text, "[berth: %llu lines were lost: they could not be written]",
			 (unsigned long long)lost);
	l->lost = 0;
	log_line(l, stamp, STREAM_STDERR, 'F', text, (size_t)n, "", 0);
	log_flush(l);
	/* Still no room: the notice itself does not count as a line. */
	if (l->lost)
		l->lost = lost;
}

/* log_data takes what was read from a container and writes its whole lines. */
void log_data(struct stream *s, const char *p, size_t n)
{
	struct log *l = &s->ctr->log;
	char stamp[STAMP];
	if (!l->path)
		return;
	stamp_now(stamp);
	log_tell_lost(l, stamp);
	while (n > 0) {
		size_t room = LINEMAX - s->npart;
		const char *nl = memchr(p, '\n', n < room + 1 ? n : room + 1);
		if (nl) {
			log_line(l, stamp, s->num, 'F', s->part, s->npart, p, (size_t)(nl - p));
			n -= (size_t)(nl - p) + 1;
			p = nl + 1;
			s->npart = 0;
			continue;
		}
		if (n > room) {
			log_line(l, stamp, s->num, 'P', s->part, s->npart, p, room);
			p += room;
			n -= room;
			s->npart = 0;
			continue;
		}
		if (!s->part && !(s->part = malloc(LINEMAX)))
			return;
		memcpy(s->part + s->npart, p, n);
		s->npart += (uint32_t)n;
		n = 0;
	}
	if (s->npart == 0 && s->part) {
		free(s->part);
		s->part = NULL;
	}
	log_flush(l);
}

/* log_end writes the line that has no end: nothing more is to come. */
void log_end(struct stream *s)
{
	char stamp[STAMP];
	if (s->npart && s->ctr->log.path) {
		log_line(&s->ctr->log, stamp_now(stamp), s->num, 'P', s->part, s->npart, "", 0);
		log_flush(&s->ctr->log);
	}
	free(s->part);
	s->part = NULL;
	s->npart = 0;
}
