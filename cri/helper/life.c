/*
 * The constructor that decides which life this process leads. It runs before
 * the Go runtime does; for a keeper the Go runtime never starts, which is what
 * makes it small.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "entry.h"
#include "hush.h"
#include "keeper.h"
#include "launch.h"
#include "link.h"
#include "proto.h"
#include "runtime.h"
#include "sandbox.h"
#include "sanitizer.h"
#include "sys.h"
#include "wire.h"

/* The kernel's own for processes that ask for none. */
#define USUAL_SLACK_NS 50000ul

/* Descriptors that cri/keeper passes. */
enum { FD_CONFIG = 3, FD_DIR, FD_LOCK, FD_READY, FD_END };

static void give_up(const char *what)
{
	dprintf(FD_READY, "-%s", what);
	_exit(1);
}

static void read_config(struct msg *m)
{
	struct stat st;
	memset(m, 0, sizeof *m);
	if (fstat(FD_CONFIG, &st) < 0 || st.st_size < (off_t)sizeof m->h)
		give_up("no configuration");
	void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, FD_CONFIG, 0);
	if (map == MAP_FAILED)
		give_up("configuration cannot be read");
	memcpy(&m->h, map, sizeof m->h);
	m->map = map;
	m->p = (char *)map + sizeof m->h;
	m->n = (size_t)st.st_size - sizeof m->h;
	if (m->h.magic != PROTO_MAGIC || m->h.len != m->n || !msg_valid(m->p, m->n))
		give_up("configuration is not valid");
}

/*
 * reset_signals undoes what was inherited: an ignored signal would stay so in
 * containers. The two that the C library keeps to itself are among them, since
 * its posix_spawn leaves them ignored in what it starts, so it is not asked.
 */
static void reset_signals(void)
{
	struct {
		void *handler;
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} dfl = { 0 };
	for (int sig = 1; sig <= 64; sig++)
		syscall(SYS_rt_sigaction, sig, &dfl, NULL, sizeof dfl.mask);
}

/*
 * keep_apart has all that is allocated from now on in one place that begins with
 * a page of its own, so that it need not be handed on to processes in containers
 * (enter.c). What the C library needs in any process comes before it.
 */
static void keep_apart(void)
{
	const uintptr_t page = getauxval(AT_PAGESZ);
	mallopt(M_MMAP_MAX, 0);
	char *gap = malloc(2 * page);
	if (!gap)
		give_up("no memory");
	heap_start = ((uintptr_t)gap + page - 1) & ~(page - 1);
}

static void __attribute__((noreturn)) keeper(void)
{
	struct msg m;
	char err[512];
	sigset_t all;

	for (int fd = FD_CONFIG; fd < FD_END; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	close_range(FD_END, ~0u, 0);
	umask(077);
	keep_apart();
	prctl(PR_SET_NAME, "berth-keeper", 0, 0, 0);
	/* Containers inherit it, and that of the agent's threads is the agent's. */
	prctl(PR_SET_TIMERSLACK, USUAL_SLACK_NS, 0, 0, 0);
	/* Signals are read from a descriptor; none may end a keeper but SIGKILL. */
	reset_signals();
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	dirfd_ = FD_DIR;
	sanitizer_report_to(FD_DIR);
	read_config(&m);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0)
		give_up("cannot become a subreaper");
	if (sandbox_setup(&m, err, sizeof err) < 0) {
		if (pid1 > 0)
			kill(pid1, SIGKILL);
		give_up(err);
	}
	hush_limits(&m);
	int spare = (tag_u32(&m, TAG_FLAGS) & FLAG_NOSPARE) == 0;
	munmap(m.map, m.n + sizeof m.h);
	close(FD_CONFIG);
	/*
	 * Children that enter a container start as copies of the keeper: what
	 * is in the container must not trace them. (exec sets it back.)
	 */
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	int sock = sandbox_listen();
	if (sock < 0 || keeper_init(sock) < 0) {
		snprintf(err, sizeof err, "listen: %s", strerror(errno));
		if (pid1 > 0)
			kill(pid1, SIGKILL);
		give_up(err);
	}
	/* Before anybody is told of this keeper, and puts it into its cgroup. */
	if (spare)
		spare_start();
	dprintf(FD_READY, "+%d", pid1);
	close(FD_READY);
	spare_move();
	keeper_run();
	_exit(0);
}

/*
 * hold is in namespaces that somebody is about to pin, or in a scope of systemd
 * until a container is, and there for as long as the other end of its input is.
 */
static void __attribute__((noreturn)) hold(void)
{
	char c;
	while (read(0, &c, 1) > 0)
		;
	_exit(0);
}

/*
 * The priority puts it before the constructor of libcontainer's nsenter, which
 * in turn only acts on what libcontainer itself started.
 */
static void __attribute__((constructor(200))) choose_life(int argc, char **argv, char **envp)
{
	(void)envp;
	if (argc > 0 && strcmp(argv[0], "berth-keeper") == 0) {
		main_argv = argv;
		keeper();
	}
	if (argc > 0 && (strcmp(argv[0], "berth-userns") == 0 || strcmp(argv[0], "berth-holder") == 0))
		hold();
	if (argc > 1 && strcmp(argv[0], "berth-cgroup1") == 0)
		veiled(argv + 1);
	if (argc == 2 && strcmp(argv[1], "init") == 0)
		no_huge_pages();
}
