/*
 * Small things the other parts ask of the kernel. See sys.c.
 */
#ifndef BERTH_SYS_H
#define BERTH_SYS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "wire.h"

extern int dirfd_; /* the keeper's directory */
int64_t now_ns(void);
int64_t mono_ns(void);
#define DECIMAL 24
size_t join_text(char *buf, size_t size, ...) __attribute__((sentinel));
const char *decimal(char buf[DECIMAL], int64_t v);
int write_path(const char *path, const char *data, size_t n);
int write_record(const char *dir, const char *id, const char *data, size_t n);
uint64_t start_time(pid_t pid);
ssize_t read_path(int dir, const char *path, char *buf, size_t size);
int open_cgroup(struct span path);
int join_cgroup(struct span path);
int kill_tree(pid_t root, int self);
int kill_children(int (*which)(pid_t));
void end_with(pid_t parent);
int is_child(pid_t pid);
int kill_exec(pid_t keeper, pid_t entry, pid_t settler, pid_t program);
ssize_t write_all(int fd, const char *p, size_t n);
void child_reset(void);
void place_fds(int *fds, int n);
int fork_paired(pid_t *pid, int *sock);
#endif
