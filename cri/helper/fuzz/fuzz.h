/*
 * What the fuzz targets share. A target is one function, LLVMFuzzerTestOneInput,
 * which libFuzzer calls (.ci/fuzz), and main.c with the seeds in corpus
 * (sanitize_test.go). It aborts when what it looks at is wrong.
 */
#ifndef BERTH_FUZZ_H
#define BERTH_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define CHECK(ok) \
	do { \
		if (!(ok)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #ok); \
			abort(); \
		} \
	} while (0)

#endif
