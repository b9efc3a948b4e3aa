/*
 * The terminals of programs. See terminal.c.
 */
#ifndef BERTH_TERMINAL_H
#define BERTH_TERMINAL_H

#include "program.h"
#include "wire.h"

int terminal_take(int sock);
int terminal_open(struct program *p, const struct msg *m);
#endif
