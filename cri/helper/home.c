/*
 * Where users of a container are at home, by its /etc/passwd as it is now: a
 * program may have added its user when it began. The file is anybody's. home.go
 * looks for the start of a container, when there is no inside yet that it could
 * be read from, and understands it in the same way.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "home.h"
#include "sys.h"

/* More is not read, nor a line of more than the room for text. */
#define PASSWD_MAX (4 << 20)

static const char space[] = " \t\v\f\r";

/* id reads a number that a process can have for its user or group. */
static int id(const char *s, uint32_t *out)
{
	uint64_t n = 0;
	const char *p = s;
	for (; *p >= '0' && *p <= '9' && n <= UINT32_MAX; p++)
		n = n * 10 + (uint64_t)(*p - '0');
	*out = (uint32_t)n;
	return p > s && !*p && n < UINT32_MAX;
}

/* home_in says whether a line is the user's. It is then cut to its home, "" where it has none. */
static int home_in(char *line, uint32_t uid, const char **home)
{
	char *f[7] = { line + strspn(line, space) };
	uint32_t u, g;
	for (size_t n = strlen(f[0]); n && strchr(space, f[0][n - 1]); n--)
		f[0][n - 1] = 0;
	for (int i = 1; i < 7 && f[i - 1]; i++)
		if ((f[i] = strchr(f[i - 1], ':')))
			*f[i]++ = 0;
	if (!*f[0] || *f[0] == '#' || !f[3] || !id(f[2], &u) || !id(f[3], &g) || u != uid)
		return 0;
	*home = f[5] ? f[5] : "";
	return 1;
}

/*
 * open_passwd opens the file where it is one: to open a device may do something, and so may reading what the kernel
 * makes, as /proc/kmsg, of which the machine's log would lose what is read here. Nor is it looked for through those
 * links of /proc that lead to what this process has open, which may be the host's.
 */
static int open_passwd(void)
{
	struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, .resolve = RESOLVE_NO_MAGICLINKS };
	struct stat st;
	struct statfs fs;
	if (stat("/etc/passwd", &st) < 0 || !S_ISREG(st.st_mode))
		return -1;
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, "/etc/passwd", &how, sizeof how);
	if (fd < 0 && errno == ENOSYS)
		fd = open("/etc/passwd", (int)how.flags);
	/* The container may have changed it. */
	if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || fstatfs(fd, &fs) < 0 ||
			fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* home_of writes a user's home, "/" where the file does not say. */
void home_of(uint32_t uid, char *home, size_t size)
{
	static char text[64 * 1024];
	const char *found = "";
	size_t has = 0, all = 0;
	int fd = open_passwd();
	for (int done = fd < 0; !done;) {
		size_t room = sizeof text - 1 - has;
		if (room > PASSWD_MAX - all)
			room = PASSWD_MAX - all;
		ssize_t r = room ? read(fd, text + has, room) : 0;
		int end = r <= 0;
		if (!end)
			has += (size_t)r, all += (size_t)r;
		char *line = text, *next;
		text[has] = 0;
		while (!done && (next = memchr(line, '\n', has - (size_t)(line - text)))) {
			*next = 0;
			done = !memchr(line, 0, (size_t)(next - line)) && home_in(line, uid, &found);
			line = next + 1;
		}
		if (done)
			break;
		has -= (size_t)(line - text);
		if (end && !memchr(line, 0, has))
			home_in(line, uid, &found);
		done = end || has == sizeof text - 1;
		memmove(text, line, done ? 0 : has);
	}
	if (fd >= 0)
		close(fd);
	if (!*found || join_text(home, size, found, NULL) >= size)
		join_text(home, size, "/", NULL);
}
