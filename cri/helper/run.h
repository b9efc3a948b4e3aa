/*
 * The start of a container. See run.c.
 */
#ifndef BERTH_RUN_H
#define BERTH_RUN_H

#include "state.h"
#include "wire.h"

void run_request(struct conn *c, struct msg *m);
void run_reaped_launcher(struct ctr *k, int status);
void run_reports(void);
void ctr_free(struct ctr *k);
void reply_pid(struct conn *c, struct ctr *k);
void run_launch(struct ctr *k, struct msg *m);
void run_failed(struct ctr *k, const char *why);
#endif
