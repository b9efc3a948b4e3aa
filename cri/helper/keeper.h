/*
 * What the parts of the keeper share. The keeper is one thread in one loop over
 * epoll; it never starts the Go runtime of the binary it is in. See
 * docs/architecture.md for its place, proto.h for how it is spoken to.
 */
#ifndef BERTH_KEEPER_H
#define BERTH_KEEPER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "proto.h"

/* Whether AddressSanitizer is in this build, which only tests run. */
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define IDMAX 128
#define SCRATCH (64 * 1024)
#define LINEMAX (16 * 1024) /* what the CRI log format has in one line */

/* A descriptor in the loop. It is the first member of what it belongs to. */
struct source {
	int fd;
	uint32_t events;
	void (*ready)(struct source *, uint32_t events);
};

/* A string inside a message. */
struct span {
	const char *p;
	uint32_t n;
};

/* A message that was received, with the files that came with it. */
struct msg {
	struct header h;
	const char *p; /* payload */
	size_t n;
	void *map; /* where the payload is when it came in a memfd */
	int fds[4];
	int nfds;
};

struct log {
	char *path;
	int fd;
	int64_t size, max;
	uint32_t files;
	int64_t rotated; /* second of the last rotation */
	int seq;	 /* rotations in that second */
	uint64_t lost;	 /* lines there was no room for */
	size_t buffered; /* bytes of ours in the shared output buffer */
	uint32_t lines;	 /* lines of ours in there */
};

struct ctr;

/* One output of a container. */
struct stream {
	struct source s;
	struct ctr *ctr;
	int num; /* STREAM_* */
	char *part; /* the beginning of a line, up to LINEMAX */
	uint32_t npart;
};

enum phase { LAUNCHING, RUNNING, EXITED };

struct report {
	struct source s;
	struct ctr *ctr;
};

struct input {
	struct source s;
	struct ctr *ctr;
};

struct ctr {
	struct ctr *next;
	char id[IDMAX + 1];
	enum phase phase;
	pid_t launcher, pid;
	uint32_t flags;
	int failed; /* the launcher gave up; waits to be reaped */
	int started; /* the launcher said so */
	int64_t started_at, finished_at;
	int status, oom;
	char *memcg;
	struct log log;
	struct stream out[2];
	struct input in; /* stdin, or the terminal's master when it is to be written */
	struct report report, console;
	char *error;
	struct groups *groups; /* its cgroups, once an exec has joined them */
	struct conn *waiters; /* who asked for it to run */
	struct conn *attached;
	/* hush.c */
	ino_t joins; /* a PID namespace that others are in, or 0 */
	ino_t pidns; /* the one its program is in, once it runs */
	int looks;   /* it may trace what it sees */
	char *freezer; /* its cgroup, NULL where it cannot be frozen */
	enum { NOT_FROZEN, FROZEN_BY_US, FROZEN_BEFORE } frozen;
	struct request *request; /* what waits to be started */
};

enum kind { FRESH, WAITER, WATCHER, EXECUTOR, ATTACHER };

struct conn {
	struct source s;
	enum kind kind;
	struct conn *next; /* in the list of its kind */
	struct ctr *ctr;
	struct exec *exec;
	char *pending; /* stdin the container has not taken yet */
	uint32_t npending, opending;
};

/* keeper.c */
extern int dirfd_;
extern struct ctr *ctrs;
void source_add(struct source *s, int fd, uint32_t events, void (*ready)(struct source *, uint32_t));
void source_pause(struct source *s);
void source_resume(struct source *s, uint32_t events);
void source_del(struct source *s);
struct ctr *ctr_find(struct span id);
void conn_close(struct conn *c);
void reply_not_running(struct conn *c, struct ctr *k);
void child_reset(void);
char *scratch_in(void);
char *scratch_out(void);
void scratch_free(void);
int loop_init(int sock);
void loop(void);
void reap(void);

/* wire.c */
int msg_recv(int fd, struct msg *m);
void msg_free(struct msg *m);
int msg_valid(const char *p, size_t n);
int tag_next(const struct msg *m, size_t *at, enum tag t, struct span *v);
struct span tag_str(const struct msg *m, enum tag t);
uint32_t tag_u32(const struct msg *m, enum tag t);
uint64_t tag_u64(const struct msg *m, enum tag t);
int tag_has(const struct msg *m, enum tag t);
char *span_dup(struct span s);
struct reply {
	char buf[2048];
	size_t n;
};
void reply_start(struct reply *r, enum op op);
void reply_bytes(struct reply *r, enum tag t, const void *p, size_t n);
void reply_u32(struct reply *r, enum tag t, uint32_t v);
void reply_u64(struct reply *r, enum tag t, uint64_t v);
int reply_send(struct reply *r, int fd, int pass);
void reply_error(int fd, int err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* sys.c */
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

/* sandbox.c */
extern pid_t pid1;
extern const char *launchcg; /* launchers' cgroup.procs, NUL after each, empty at the end */
int sandbox_setup(const struct msg *conf, char *err, size_t size);
int sandbox_listen(void);
void set_title(const char *title);
extern char **main_argv;

/* sanitizer.c */
#if SANITIZED
void sanitizer_report_to(int dir);
#else
static inline void sanitizer_report_to(int dir)
{
	(void)dir;
}
#endif

/* podinit.c */
#define BIRTHGROUPS 32
struct birth {
	int said[2];
	int n, groups[BIRTHGROUPS]; /* the files to write to, to be in them */
};
int birth_prepare(struct birth *b, const struct msg *m, char *err, size_t size);
pid_t birth(struct birth *b, int user);
int birth_wait(struct birth *b, char *err, size_t size);
void birth_over(struct birth *b);

/* run.c */
void run_request(struct conn *c, struct msg *m);
void run_reaped_launcher(struct ctr *k, int status);
void run_reports(void);
void ctr_free(struct ctr *k);
void reply_pid(struct conn *c, struct ctr *k);

void run_launch(struct ctr *k, struct msg *m);
void run_failed(struct ctr *k, const char *why);

/* hush.c */
void hush_limits(const struct msg *m);
void hush_take(struct ctr *k, const struct msg *m);
int hush_wanted(const struct ctr *k);
int hush_queue(struct ctr *k, const struct msg *m);
void hush_next(void);
void hush_started(struct ctr *k);
void hush_gone(struct ctr *k);
void hush_end(void);

/* launch.c */
struct launch {
	const char *id;
	char *bundle, *state;
	int fds[4]; /* stdin, stdout, stderr, console; -1 for those there are not */
	const struct msg *m; /* the request */
};
int launcher_start(const struct launch *l, pid_t *pid, int *sock);
void spare_start(void);
void spare_move(void);
int spare_check(void);
int spare_is(pid_t pid);
void spare_reaped(pid_t pid);

/* log.c */
int log_open(struct log *l);
void log_close(struct log *l);
void log_data(struct stream *s, const char *p, size_t n);
void log_end(struct stream *s);
void log_flush(struct log *l);

/* stdio.c */
void stdio_watch(struct ctr *k, int in, int out, int err);
void stdio_drain(struct ctr *k);
void stdio_close(struct ctr *k);
void attach_request(struct conn *c, struct msg *m);
void attach_message(struct conn *c, struct msg *m);
void attach_gone(struct conn *c);
int ctr_resize(struct ctr *k, uint32_t w, uint32_t h);

/* exit.c */
void ctr_exited(struct ctr *k, int status);
void watch_request(struct conn *c);
void watch_gone(struct conn *c);
int record_state(struct ctr *k, const char *phase);
void forget_request(struct conn *c, struct msg *m);

/* exec.c */
struct exec;
void exec_request(struct conn *c, struct msg *m);
void exec_message(struct conn *c, struct msg *m);
void exec_gone(struct conn *c);
int exec_reaped(pid_t pid, int status);
int exec_has(pid_t pid);

/* kin.c */
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

/* groups.c */
#define GROUPSMAX 32
struct groups {
	int dir; /* the one directory of cgroup v2, to be born in, or -1 */
	int n;
	int fds[GROUPSMAX]; /* what to write to elsewhere */
	size_t size;
	char list[]; /* the paths as they were named, a NUL after each */
};
const struct groups *groups_of(struct ctr *k, const struct msg *m);
void groups_close(struct groups *g);
int groups_join(const struct groups *g);
int cgroup2_of(pid_t pid);

/* enter.c */
struct entry {
	const struct msg *m;
	pid_t keeper;
	pid_t pid;	  /* the container's init */
	int pidfd;	  /* and a pidfd of it */
	int user;	  /* it is in a user namespace of its own */
	int sock;	  /* to the keeper, or -1 */
	const struct groups *groups;
	struct kin *kin;  /* who is started */
	int stdio[3];	  /* -1 is the container's /dev/null, unless there is a terminal */
	int conn;	  /* the agent's, to answer it instead, with the output, or -1 */
	int out[2];	  /* and where that is read from */
};
void enter(struct entry *e) __attribute__((noreturn));
/* Where they are, once settled. */
enum { ENTRY_SOCK = 3, ENTRY_CONN = 4, ENTRY_OUT = 5 };
extern uintptr_t heap_start; /* where a page of the heap begins, before all that the keeper has there */
void entry_begin(struct entry *e);
void entry_settle(struct entry *e);
void entry_fail(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));
void entry_die(struct entry *e, const char *fmt, ...) __attribute__((noreturn, format(printf, 2, 3)));
void entry_terminal(int sock, int master);
void entry_started(pid_t pid);
void entry_ended(int status);
void entry_undo(const struct entry *e);
void entry_watch(struct entry *e) __attribute__((noreturn));

/* settle.c */
struct program;
pid_t settler_start(struct program *p);


/* capture.c */
void capture_pipes(struct entry *e);
void capture(struct entry *e) __attribute__((noreturn));

/* runtime.c */
int runtime_start(const struct launch *l, pid_t *pid, int *sock);
void runtime_enter(struct entry *e) __attribute__((noreturn));
void veiled(char **argv) __attribute__((noreturn));

/* program.c */
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
	const char *apparmor, *selinux, *id;
	const char *seccomp;
	uint32_t nseccomp;
	int filtered; /* who settles is */
	int born;     /* and was in its cgroup from the start */
	int proc;     /* the host's /proc */
	int slave;    /* the terminal */
	struct last *last;
	char *stack;
	struct arena room;
	char path[4096], home[4096 + 8];
	char err[512];
};
int program_parse(struct program *p, const struct msg *m);
int program_prepare(struct program *p);
int program_confine(struct program *p);
int program_bad(struct program *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *program_errno(int e);
char **gather(const struct msg *m, enum tag t, size_t more, struct arena *a);

/* birth.c */
struct program *program_new(const struct msg *m);
int program_start(struct program *p);
int program_failed(struct program *p);
#endif
