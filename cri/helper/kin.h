/*
 * Whom entry processes have started. See kin.c.
 */
#ifndef BERTH_KIN_H
#define BERTH_KIN_H

#include <sys/types.h>

struct kin {
	volatile pid_t settler, program; /* 0 before they are born, and when they are reaped */
	int given_up;
	int used;
};
struct kin *kin_new(void);
void kin_free(struct kin *k);
int kin_hide(void);
void kin_give_up(struct kin *k);
static inline int kin_given_up(const struct kin *k)
{
	return __atomic_load_n(&k->given_up, __ATOMIC_SEQ_CST);
}
#endif
