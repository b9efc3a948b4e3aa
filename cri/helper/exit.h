/*
 * The end of containers. See exit.c.
 */
#ifndef BERTH_EXIT_H
#define BERTH_EXIT_H

#include "state.h"
#include "wire.h"

void oom_begin(struct ctr *k);
void ctr_exited(struct ctr *k, int status);
void watch_request(struct conn *c);
void watch_gone(struct conn *c);
int record_state(struct ctr *k, const char *phase);
void forget_request(struct conn *c, struct msg *m);
#endif
