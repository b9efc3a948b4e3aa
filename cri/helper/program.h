/*
 * The program of an exec: what it is to have (program.c), who makes it ready
 * (settle.c), and its birth (birth.c).
 */
#ifndef BERTH_PROGRAM_H
#define BERTH_PROGRAM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "entry.h"
#include "wire.h"

#define PROGRAM_STACK (64 * 1024)
/* Memory to take from. */
struct arena {
	char *p;
	size_t left;
};
struct program {
	const struct entry *e;
	char **argv, **envp;
	const char *cwd;
	uint32_t uid, gid, umask, *groups;
	size_t ngroups;
	int has_umask, nnp, tty;
	uint64_t caps[5];
	int has_caps;
	uint64_t hold; /* capabilities that stay permitted and effective until it is executed, which takes them */
	const char *apparmor, *selinux, *id;
	const char *seccomp;
	uint32_t nseccomp;
	int filtered; /* who settles is */
	int born;     /* and was in its cgroup from the start */
	int proc;     /* the host's /proc */
	int slave;    /* the terminal */
	int keyring;  /* it has its session keyring already */
	struct last *last;
	char *stack;
	struct arena room;
	char path[4096], home[4096 + 8];
	char err[512];
};
int program_parse(struct program *p, const struct msg *m);
int program_prepare(struct program *p);
int program_rlimits(struct program *p, const struct msg *m);
int program_home(struct program *p);
int program_confine(struct program *p);
int program_bad(struct program *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *program_errno(int e);
char **gather(const struct msg *m, enum tag t, size_t more, struct arena *a);

struct program *program_new(const struct msg *m);
int program_start(struct program *p);
struct sock_fprog program_filter(const struct program *p, uint32_t *flags);
int program_failed(struct program *p);
pid_t settler_start(struct program *p);
#endif
