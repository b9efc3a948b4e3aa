/*
 * What a container writes, into its log. The first three bytes say how large the
 * log may grow, how many are kept, and in which pieces the rest is read, in turn
 * from both streams.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../log.h"
#include "../loop.h"
#include "../proto.h"
#include "../state.h"
#include "fuzz.h"

static char dir[64];

static void clear(void)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	CHECK(d);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.')
			unlinkat(dirfd(d), e->d_name, 0);
	closedir(d);
}

static void over(void)
{
	clear();
	rmdir(dir);
}

/* line checks one line of the format, and puts its content where its stream's is collected. */
static const char *line(const char *p, const char *end, char *said[2], size_t nsaid[2])
{
	const char *nl = memchr(p, '\n', (size_t)(end - p));
	CHECK(nl && nl - p >= 40 && p[4] == '-' && p[10] == 'T' && p[29] == 'Z' && p[30] == ' ');
	int i = memcmp(p + 31, "stderr ", 7) == 0;
	CHECK(i || memcmp(p + 31, "stdout ", 7) == 0);
	CHECK((p[38] == 'F' || p[38] == 'P') && p[39] == ' ' && nl - (p + 40) <= LINEMAX);
	size_t len = (size_t)(nl - (p + 40));
	memcpy(said[i] + nsaid[i], p + 40, len);
	nsaid[i] += len;
	if (p[38] == 'F')
		said[i][nsaid[i]++] = '\n';
	return nl + 1;
}

/* compare looks whether a log that was never renamed has all that was written. */
static void compare(const struct log *l, char *wrote[2], const size_t nwrote[2])
{
	struct stat st;
	int fd = open(l->path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && fstat(fd, &st) == 0 && st.st_size == l->size);
	size_t n = (size_t)st.st_size, nsaid[2] = { 0 };
	char *text = malloc(n + 1), *said[2] = { malloc(n + 1), malloc(n + 1) };
	CHECK(text && said[0] && said[1] && read(fd, text, n) == (ssize_t)n);
	for (const char *p = text; p < text + n;)
		p = line(p, text + n, said, nsaid);
	for (int i = 0; i < 2; i++) {
		CHECK(nsaid[i] == nwrote[i] && memcmp(said[i], wrote[i], nsaid[i]) == 0);
		free(said[i]);
	}
	free(text);
	close(fd);
}

/* small says whether a file is not larger than it may be, or has but one line. */
static int small(int at, const char *name, int64_t max)
{
	char text[4096];
	struct stat st;
	int fd = openat(at, name, O_RDONLY | O_CLOEXEC), lines = 0;
	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	if (st.st_size > max)
		for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;)
			for (ssize_t i = 0; i < n; i++)
				lines += text[i] == '\n';
	close(fd);
	return lines <= 1;
}

static void check_kept(const struct log *l)
{
	uint32_t n = 0;
	struct dirent *e;
	DIR *d = opendir(dir);
	CHECK(d);
	while ((e = readdir(d)))
		if (e->d_name[0] != '.') {
			CHECK(!l->max || small(dirfd(d), e->d_name, l->max));
			n++;
		}
	closedir(d);
	CHECK(!l->max || !l->files || n <= (l->files > 1 ? l->files : 2));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	if (!dir[0]) {
		strcpy(dir, "/dev/shm/berth-fuzz-XXXXXX");
		CHECK(mkdtemp(dir) && atexit(over) == 0);
	}
	if (n < 3)
		return 0;
	char path[128];
	snprintf(path, sizeof path, "%s/log", dir);
	struct ctr k = { .log = { .path = path, .fd = -1, .max = (int64_t)data[0] * 64, .files = data[1] % 4 } };
	size_t piece = (size_t)data[2] * 97 + 1, nwrote[2] = { 0 };
	char *wrote[2] = { malloc(n), malloc(n) };
	CHECK(wrote[0] && wrote[1] && log_open(&k.log) == 0);
	for (int i = 0; i < 2; i++) {
		k.out[i].ctr = &k;
		k.out[i].num = STREAM_STDOUT + i;
	}
	data += 3;
	n -= 3;
	if (k.log.max && n > 4096)
		n = 4096; /* else nearly all the time goes into renaming files */
	for (int i = 0; n > 0; i = !i) {
		size_t m = n < piece ? n : piece;
		log_data(&k.out[i], (const char *)data, m);
		memcpy(wrote[i] + nwrote[i], data, m);
		nwrote[i] += m;
		data += m;
		n -= m;
	}
	for (int i = 0; i < 2; i++)
		log_end(&k.out[i]);
	CHECK(k.log.lost == 0 && k.log.buffered == 0);
	if (!k.log.max)
		compare(&k.log, wrote, nwrote);
	check_kept(&k.log);
	log_close(&k.log);
	clear();
	for (int i = 0; i < 2; i++)
		free(wrote[i]);
	scratch_free();
	return 0;
}
