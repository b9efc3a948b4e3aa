/*
 * The stdio of containers, and who is attached to it. See stdio.c.
 */
#ifndef BERTH_STREAMS_H
#define BERTH_STREAMS_H

#include <stdint.h>

#include "state.h"
#include "wire.h"

void stdio_watch(struct ctr *k, int in, int out, int err);
void stdio_drain(struct ctr *k);
void stdio_close(struct ctr *k);
void attach_request(struct conn *c, struct msg *m);
void attach_message(struct conn *c, struct msg *m);
void attach_gone(struct conn *c);
int ctr_resize(struct ctr *k, uint32_t w, uint32_t h);
#endif
