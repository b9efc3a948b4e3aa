/*
 * The life of a keeper. See keeper.c.
 */
#ifndef BERTH_KEEPER_H
#define BERTH_KEEPER_H

int keeper_init(int sock);
void keeper_run(void);
#endif
