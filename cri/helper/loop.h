/*
 * The descriptors that the keeper waits for, and its buffers. See loop.c.
 */
#ifndef BERTH_LOOP_H
#define BERTH_LOOP_H

#include <stdint.h>

#define SCRATCH (64 * 1024)

/* A descriptor in the loop. It is the first member of what it belongs to. */
struct source {
	int fd;
	uint32_t events;
	void (*ready)(struct source *, uint32_t events);
};

void source_add(struct source *s, int fd, uint32_t events, void (*ready)(struct source *, uint32_t));
void source_pause(struct source *s);
void source_resume(struct source *s, uint32_t events);
void source_del(struct source *s);
char *scratch_in(void);
char *scratch_out(void);
void scratch_free(void);
int scratch_held(void);
int loop_open(void);
int loop_turn(int idle);
#endif
