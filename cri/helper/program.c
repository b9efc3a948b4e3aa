/*
 * What a program of exec is to have: its strings, terminal, user and privileges,
 * and the search for its binary. The settler (settle.c) does that for it, on
 * borrowed memory, so it calls the kernel itself where the C library would keep
 * books on it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/keyctl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "home.h"
#include "program.h"
#include "proto.h"
#include "sys.h"
#include "wire.h"

int program_bad(struct program *p, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(p->err, sizeof p->err, fmt, ap);
	va_end(ap);
	return -1;
}

/* program_errno words the errors that users see often as Go does. */
const char *program_errno(int e)
{
	switch (e) {
	case ENOENT:
		return "no such file or directory";
	case EACCES:
		return "permission denied";
	case EISDIR:
		return "is a directory";
	case ENOTDIR:
		return "not a directory";
	case ENOEXEC:
		return "exec format error";
	}
	return strerror(e);
}

/* take_room finds memory, of the C library without an arena. */
static void *take_room(struct arena *a, size_t n)
{
	n = (n + sizeof(void *) - 1) & ~(sizeof(void *) - 1);
	if (!a)
		return calloc(1, n);
	if (n > a->left)
		return NULL;
	void *p = a->p;
	a->p += n;
	a->left -= n;
	return p;
}

/* first copies the only string of a tag; NULL when it is empty or has a NUL inside. */
static char *first(const struct msg *m, enum tag t, struct arena *a)
{
	struct span v = tag_str(m, t);
	if (v.n == 0 || memchr(v.p, 0, v.n))
		return NULL;
	char *s = take_room(a, v.n + 1);
	if (s)
		memcpy(s, v.p, v.n);
	return s;
}

/* gather makes a NULL-ended list of all strings of a tag, with room for more. */
char **gather(const struct msg *m, enum tag t, size_t more, struct arena *a)
{
	size_t at = 0, n = 0, bytes = 0;
	struct span v;
	while (tag_next(m, &at, t, &v)) {
		n++;
		bytes += v.n + 1;
	}
	char **list = take_room(a, (n + 1 + more) * sizeof *list), *p = take_room(a, bytes + 1);
	if (!list || !p)
		return NULL;
	n = 0;
	for (at = 0; tag_next(m, &at, t, &v); p += v.n + 1) {
		memcpy(p, v.p, v.n);
		p[v.n] = 0;
		list[n++] = p;
	}
	return list;
}

int program_parse(struct program *p, const struct msg *m)
{
	struct arena *a = &p->room;
	p->argv = gather(m, TAG_ARG, 0, a);
	p->envp = gather(m, TAG_ENV, 1, a);
	if (!p->argv || !p->envp || !p->argv[0])
		return program_bad(p, "read arguments: %s", strerror(p->argv && p->envp ? EINVAL : ENOMEM));
	p->cwd = first(m, TAG_CWD, a);
	p->id = first(m, TAG_ID, a);
	p->apparmor = first(m, TAG_APPARMOR, a);
	p->selinux = first(m, TAG_SELINUX, a);
	p->uid = tag_u32(m, TAG_UID);
	p->gid = tag_u32(m, TAG_GID);
	struct span v = tag_str(m, TAG_GROUPS);
	p->ngroups = v.n / sizeof *p->groups;
	if (p->ngroups && !(p->groups = take_room(a, v.n)))
		return program_bad(p, "read groups: %s", strerror(ENOMEM));
	if (p->ngroups)
		memcpy(p->groups, v.p, p->ngroups * sizeof *p->groups);
	p->has_umask = tag_has(m, TAG_UMASK);
	p->umask = tag_u32(m, TAG_UMASK);
	p->nnp = tag_u32(m, TAG_NNP) != 0;
	p->tty = (tag_u32(m, TAG_FLAGS) & FLAG_TTY) != 0;
	v = tag_str(m, TAG_CAPS);
	p->has_caps = v.n == sizeof p->caps;
	if (p->has_caps)
		memcpy(p->caps, v.p, sizeof p->caps);
	v = tag_str(m, TAG_SECCOMP);
	if (v.n && (v.n < 16 || (v.n - 8) % sizeof(struct sock_filter) ||
		    (v.n - 8) / sizeof(struct sock_filter) > BPF_MAXINSNS))
		return program_bad(p, "seccomp filter is not valid");
	p->nseccomp = v.n;
	p->seccomp = v.p;
	if (p->nnp && v.n) { /* it loads it itself */
		char *copy = take_room(a, v.n);
		if (!copy)
			return program_bad(p, "read seccomp filter: %s", strerror(ENOMEM));
		p->seccomp = memcpy(copy, v.p, v.n);
	}
	return 0;
}

static int write_proc(struct program *p, const char *path, const char *data, size_t n)
{
	int fd = openat(p->proc, path, O_WRONLY | O_CLOEXEC);
	int ok = fd >= 0 && write(fd, data, n) == (ssize_t)n;
	int e = errno;
	if (fd >= 0)
		close(fd);
	errno = e;
	return ok ? 0 : -1;
}

/* set_labels says which profile and label the execve that follows brings. */
static int set_labels(struct program *p)
{
	char buf[512];
	if (p->apparmor && strcmp(p->apparmor, "unconfined") != 0) {
		int n = snprintf(buf, sizeof buf, "exec %s", p->apparmor);
		if (write_proc(p, "self/attr/apparmor/exec", buf, (size_t)n) < 0 &&
		    (errno != ENOENT || write_proc(p, "self/attr/exec", buf, (size_t)n) < 0))
			return program_bad(p, "apply apparmor profile %s: %s", p->apparmor, strerror(errno));
	}
	if (p->selinux && write_proc(p, "self/attr/exec", p->selinux, strlen(p->selinux)) < 0)
		return program_bad(p, "apply selinux label %s: %s", p->selinux, strerror(errno));
	return 0;
}

/*
 * set_stdio gives the program's user what it is to read and write, so that
 * opening /dev/stdout again works.
 */
static int set_stdio(struct program *p)
{
	if (p->slave >= 0) {
		for (int i = 0; i < 3; i++)
			if (dup2(p->slave, i) < 0)
				return program_bad(p, "dup terminal: %s", strerror(errno));
		if (fchown(0, p->uid, (gid_t)-1) < 0 && errno != EPERM && errno != EINVAL && errno != EROFS)
			return program_bad(p, "change owner of terminal: %s", strerror(errno));
		return 0;
	}
	for (int i = 0; i < 3; i++) {
		struct stat st;
		if (fstat(i, &st) < 0 || !S_ISFIFO(st.st_mode) || st.st_uid == p->uid)
			continue;
		if (fchown(i, p->uid, (gid_t)-1) < 0 && errno != EPERM && errno != EINVAL && errno != EROFS)
			return program_bad(p, "change owner of stdio: %s", strerror(errno));
	}
	return 0;
}

/* A session keyring is shared by the processes of a container only. */
static int join_keyring(struct program *p)
{
	char name[IDMAX + 8];
	join_text(name, sizeof name, "_ses.", p->id ? p->id : "", NULL);
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name) < 0 && errno != ENOSYS && errno != EPERM &&
	    errno != EACCES)
		return program_bad(p, "join session keyring: %s", strerror(errno));
	return 0;
}

/*
 * go_to enters the working directory and makes sure that it is below the
 * container's root: one that was opened outside would lead out of it, and
 * getcwd(2) marks it with "(unreachable)" (CVE-2024-21626).
 */
static int go_to(struct program *p)
{
	char buf[PATH_MAX];
	if (p->cwd && chdir(p->cwd) < 0)
		return program_bad(p, "chdir to cwd (\"%s\") set in config.json failed: %s", p->cwd, program_errno(errno));
	if (syscall(SYS_getcwd, buf, sizeof buf) < 0)
		return program_bad(p, "getcwd: %s", strerror(errno));
	if (buf[0] != '/')
		return program_bad(p, "current working directory is outside of container mount namespace root");
	return 0;
}

/*
 * program_home sets HOME when it is not set, or to nothing.
 */
int program_home(struct program *p)
{
	static const char name[] = "HOME=";
	const size_t n = sizeof name - 1;
	const char *last = "";
	char **e, **to;
	for (e = p->envp; *e; e++)
		if (strncmp(*e, name, n) == 0)
			last = *e + n;
	if (*last)
		return 0;
	for (e = to = p->envp; *e; e++)
		if (strncmp(*e, name, n) != 0)
			*to++ = *e;
	memcpy(p->home, name, n);
	home_of(p->uid, p->home + n, sizeof p->home - n);
	to[0] = p->home, to[1] = NULL;
	return 0;
}

static int set_caps(struct program *p)
{
	struct __user_cap_header_struct h = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct d[2];
	for (int i = 0; i < 2; i++) {
		d[i].effective = (uint32_t)((p->caps[1] | p->hold) >> (32 * i));
		d[i].permitted = (uint32_t)((p->caps[2] | p->hold) >> (32 * i));
		d[i].inheritable = (uint32_t)(p->caps[3] >> (32 * i));
	}
	if (syscall(SYS_capset, &h, d) < 0)
		return program_bad(p, "set capabilities: %s", strerror(errno));
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	for (int c = 0; c < 64; c++)
		if (p->caps[4] & (1ull << c) && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0) < 0)
			return program_bad(p, "raise ambient capability %d: %s", c, strerror(errno));
	return 0;
}

/*
 * is_user says whether this process has become the program's user. A seccomp profile can have a call return 0 and do
 * nothing, as one does under which packages are to be unpacked without privileges. It is asked only what it tells: what
 * the profile forbids too leaves these as they are.
 */
static int is_user(const struct program *p)
{
	uid_t u = p->uid, eu = u, su = u;
	gid_t g = p->gid, eg = g, sg = g;
	getresuid(&u, &eu, &su);
	getresgid(&g, &eg, &sg);
	return u == p->uid && eu == u && su == u && g == p->gid && eg == g && sg == g;
}

static int set_user(struct program *p)
{
	/* The bounding set first: it takes a capability that may be dropped next. */
	for (int c = 0; p->has_caps && c < 64; c++) {
		if (p->caps[0] & (1ull << c))
			continue;
		if (prctl(PR_CAPBSET_DROP, c, 0, 0, 0) < 0) {
			if (errno == EINVAL) /* the kernel's last one is behind us */
				break;
			return program_bad(p, "drop bounding capability %d: %s", c, strerror(errno));
		}
	}
	if (p->has_caps && prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0)
		return program_bad(p, "keep capabilities: %s", strerror(errno));
	/* The kernel would take this for "no change", and the program be root. */
	if (p->uid == UINT32_MAX || p->gid == UINT32_MAX)
		return program_bad(p, "user %u and group %u: %s", p->uid, p->gid, strerror(EINVAL));
	if (syscall(SYS_setgroups, p->ngroups, p->groups) < 0 && !(p->e->user && p->ngroups == 0 && errno == EPERM))
		return program_bad(p, "setgroups: %s", strerror(errno));
	if (syscall(SYS_setresgid, p->gid, p->gid, p->gid) < 0)
		return program_bad(p, "setgid %u: %s", p->gid, strerror(errno));
	if (syscall(SYS_setresuid, p->uid, p->uid, p->uid) < 0)
		return program_bad(p, "setuid %u: %s", p->uid, strerror(errno));
	return is_user(p) ? 0 : program_bad(p, "setuid %u: the seccomp profile pretends that it was done", p->uid);
}

/* usable says with 0 whether a path is a file this user may execute. */
static int usable(const char *path)
{
	struct stat st;
	if (stat(path, &st) < 0)
		return errno;
	if (S_ISDIR(st.st_mode))
		return EISDIR;
	return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) < 0 ? errno : 0;
}

/* look_up finds the binary, with the words of Go's exec.LookPath if it cannot. */
static int look_up(struct program *p, char *path, size_t size)
{
	const char *name = p->argv[0], *dirs = "";
	if (strchr(name, '/')) {
		int e = usable(name);
		if (e == ENOENT || e == ENOTDIR || e == ELOOP)
			return program_bad(p, "exec: \"%s\": stat %s: %s", name, name, program_errno(e));
		if (e)
			return program_bad(p, "exec: \"%s\": %s", name, program_errno(e));
		return join_text(path, size, name, NULL) < size ? 0 : program_bad(p, "exec: \"%s\": file name too long", name);
	}
	for (char **e = p->envp; *e; e++)
		if (strncmp(*e, "PATH=", 5) == 0)
			dirs = *e + 5;
	while (*name && *dirs) {
		size_t n = strcspn(dirs, ":");
		/* A relative directory would be searched where the cwd leads. */
		if (n > 0 && n < size && dirs[0] == '/') {
			memcpy(path, dirs, n);
			if (join_text(path + n, size - n, "/", name, NULL) < size - n && usable(path) == 0)
				return 0;
		}
		dirs += n + (dirs[n] == ':');
	}
	return program_bad(p, "exec: \"%s\": executable file not found in $PATH", name);
}

/* program_rlimits comes before the user namespace, in which none could be raised. */
int program_rlimits(struct program *p, const struct msg *m)
{
	size_t at = 0;
	struct span v;
	while (tag_next(m, &at, TAG_RLIMIT, &v)) {
		uint32_t res;
		uint64_t lim[2];
		if (v.n != sizeof res + sizeof lim)
			return program_bad(p, "rlimit is not valid");
		memcpy(&res, v.p, sizeof res);
		memcpy(lim, v.p + sizeof res, sizeof lim);
		struct rlimit r = { lim[0], lim[1] };
		if (setrlimit((__rlimit_resource_t)res, &r) < 0)
			return program_bad(p, "set rlimit %u: %s", res, strerror(errno));
	}
	return 0;
}

/* program_prepare is what is done with all privileges still there. */
int program_prepare(struct program *p)
{
	if (set_stdio(p) < 0 || (!p->keyring && join_keyring(p) < 0) || program_home(p) < 0 || set_labels(p) < 0)
		return -1;
	/* Before a filter could forbid it: nothing but stdio may be left. */
	if (close_range(3, ~0u, 0) < 0)
		return program_bad(p, "close descriptors: %s", strerror(errno));
	umask(p->has_umask ? p->umask : 022);
	/* Root may enter where the user may not, and on some mounts the other way. */
	if (p->cwd && chdir(p->cwd) == 0)
		p->cwd = NULL;
	else if (p->cwd && errno != EACCES && errno != EPERM)
		return program_bad(p, "chdir to cwd (\"%s\") set in config.json failed: %s", p->cwd, program_errno(errno));
	if (p->nnp && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return program_bad(p, "set no_new_privs: %s", strerror(errno));
	return 0;
}

/* program_confine leaves no more privilege than the program is to have, and finds its binary with that. */
int program_confine(struct program *p)
{
	if (set_user(p) < 0 || go_to(p) < 0 || (p->has_caps && set_caps(p) < 0))
		return -1;
	return look_up(p, p->path, sizeof p->path);
}
