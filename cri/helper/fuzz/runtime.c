/*
 * The log of another OCI runtime, of which the last error is told. Its lines may
 * have anything in them that a container chose.
 */
#include "../runtime.c"

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	char why[1024], small[2];
	struct call c = { .log = memfd_create("fuzz", MFD_CLOEXEC) };
	CHECK(c.log >= 0 && write_all(c.log, (const char *)data, n) >= 0);
	memset(why, 'x', sizeof why);
	last_error(&c, why, sizeof why);
	CHECK(memchr(why, 0, sizeof why) && !strchr(why, '\n'));
	last_error(&c, small, sizeof small);
	CHECK(memchr(small, 0, sizeof small));
	close(c.log);
	return 0;
}
