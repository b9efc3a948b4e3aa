/*
 * What the sanitizers of a build for tests (go build -asan) are to do. A keeper
 * has no standard error and no environment, so it finds out by itself where to
 * tell: in its directory, as sanitizer.<pid>.
 */
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "sanitizer.h"

#if SANITIZED

void __sanitizer_set_report_path(const char *path);
const char *__asan_default_options(void);
const char *__ubsan_default_options(void);

/*
 * What is still allocated at the end says nothing: a copy of a keeper ends by
 * _exit(2) or execve(2), with all that had.
 */
const char *__asan_default_options(void)
{
	return "detect_leaks=0:abort_on_error=1";
}

const char *__ubsan_default_options(void)
{
	return "halt_on_error=1:abort_on_error=1:print_stacktrace=1";
}

/* By its name, since a copy that enters a container has closed the directory. */
void sanitizer_report_to(int dir)
{
	static char path[PATH_MAX];
	static const char name[] = "/sanitizer";
	char link[] = "/proc/self/fd/0";
	link[sizeof link - 2] = (char)('0' + dir);
	ssize_t n = readlink(link, path, sizeof path - sizeof name);
	if (n <= 0)
		return;
	memcpy(path + n, name, sizeof name);
	__sanitizer_set_report_path(path);
}

#endif
