/*
 * Runs a fuzz target without a fuzzer: over the files that are named, and over
 * as many changed copies of each as the first argument says.
 */
#include <string.h>

#include "fuzz.h"

#define MAX (1 << 20)

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t rnd(uint32_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % below;
}

/* change makes a few of the mistakes that bytes from elsewhere have. */
static size_t change(uint8_t *p, size_t n)
{
	static const uint32_t lengths[] = { 0, 1, 7, 8, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff8 };
	for (uint32_t i = rnd(4) + 1; i > 0 && n > 0; i--)
		switch (rnd(5)) {
		case 0:
			p[rnd((uint32_t)n)] ^= (uint8_t)(1u << rnd(8));
			break;
		case 1:
			p[rnd((uint32_t)n)] = (uint8_t)rnd(256);
			break;
		case 2:
			n = rnd((uint32_t)n) + 1;
			break;
		case 3:
			if (n >= 4)
				memcpy(p + (rnd((uint32_t)n - 3)), &lengths[rnd(8)], 4);
			break;
		case 4:
			if (2 * n <= MAX) {
				memcpy(p + n, p, n);
				n += rnd((uint32_t)n) + 1;
			}
			break;
		}
	return n;
}

/* run gives the target bytes with nothing behind them that could be read. */
static void run(const uint8_t *p, size_t n)
{
	uint8_t *exact = malloc(n ? n : 1);
	CHECK(exact);
	memcpy(exact, p, n);
	LLVMFuzzerTestOneInput(exact, n);
	free(exact);
}

int main(int argc, char **argv)
{
	static uint8_t seed[MAX], buf[2 * MAX];
	int times = argc > 1 ? atoi(argv[1]) : 0;
	for (int i = 2; i < argc; i++) {
		FILE *f = fopen(argv[i], "r");
		CHECK(f);
		size_t n = fread(seed, 1, sizeof seed, f);
		fclose(f);
		run(seed, n);
		for (int k = 0; k < times; k++) {
			memcpy(buf, seed, n);
			run(buf, change(buf, n));
		}
	}
	return 0;
}
