/*
 * Starts beside which nobody may look. See hush.c.
 */
#ifndef BERTH_HUSH_H
#define BERTH_HUSH_H

#include "state.h"
#include "wire.h"

void hush_limits(const struct msg *m);
int64_t hush_launch_ns(void);
void hush_take(struct ctr *k, const struct msg *m);
int hush_wanted(const struct ctr *k);
int hush_queue(struct ctr *k, const struct msg *m);
void hush_next(void);
void hush_started(struct ctr *k);
void hush_gone(struct ctr *k);
void hush_end(void);
#endif
