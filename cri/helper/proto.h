/*
 * The wire format between the agent and a keeper, mirrored by
 * cri/keeper/wire.go.
 *
 * A keeper listens on a SOCK_SEQPACKET unix socket, keeper.sock in its
 * directory, and answers root only. Each packet is one message: a header of 16
 * bytes, and as much payload as the header says. All numbers are of the
 * machine's byte order (both ends are on one machine).
 *
 * A payload is a run of fields: u16 tag, u16 zero, u32 length, value. Numbers
 * are u32 or u64, strings have no NUL at their end, and a tag may repeat where
 * the list below says so. A payload over 60 KiB is in a memfd, sealed against
 * changes, that is the first file passed along (SCM_RIGHTS) with MSG_MEMFD set
 * in the header's flags. MSG_DATA alone has raw bytes as its payload and the
 * number of the stream in its flags.
 *
 * An upgraded agent speaks to keepers of the version before. So numbers are
 * never given a new meaning, both ends skip tags they do not know, and an
 * unknown operation is answered with MSG_ERROR.
 *
 * One connection carries one request. After the answer (MSG_OK or MSG_ERROR):
 *   MSG_WATCH   a MSG_EXIT follows for every container that ends
 *   MSG_EXEC    one MSG_EXIT follows; the agent may send MSG_SIGNAL meanwhile,
 *               and hangs up when it has no more interest in what was started.
 *               With FLAG_CAPTURE there is no MSG_OK: MSG_DATA for output that
 *               fills a packet, then MSG_EXIT with the rest of it. The only
 *               signal is SIGKILL. After MSG_EXIT the agent may send the next
 *               MSG_EXEC on the same connection, if it has sent no signal
 *   MSG_ATTACH  MSG_DATA goes both ways; the agent may send MSG_RESIZE and
 *               MSG_STDINEOF; hanging up detaches
 *   others      nothing
 */
#ifndef BERTH_PROTO_H
#define BERTH_PROTO_H

#include <stdint.h>

#define PROTO_MAGIC 0x314b5242u /* "BRK1" */
#define PROTO_VERSION 4 /* 2: FLAG_CAPTURE, 3: one after the other, 4: ordinary ones in scopes of systemd */
#define PROTO_INLINE (60 * 1024)
#define PROTO_PAYLOAD (16 * 1024 * 1024)
#define MSG_MEMFD (1u << 31)

struct header {
	uint32_t magic;
	uint16_t version;
	uint16_t op;
	uint32_t flags;
	uint32_t len;
};

enum op {
	MSG_HELLO = 1,	/* -> VERSION PID PID1 */
	MSG_RUN = 2,	/* ID BUNDLE STATE LOGPATH LOGMAX LOGFILES FLAGS MEMCG [RUNTIME CGROUP] [PIDNS]
			   [FREEZER] [ROOT and the fields with it] -> PID */
	MSG_WATCH = 3,
	MSG_FORGET = 4,	/* ID */
	MSG_EXEC = 5,	/* ID and the fields from ARG on, or ID BUNDLE FLAGS FILES RUNTIME PROCESS
			   [CGROUP] -> PID, the terminal's master */
	MSG_SIGNAL = 6,	/* ID SIGNAL; after MSG_EXEC: SIGNAL */
	MSG_ATTACH = 7,	/* ID */
	MSG_DATA = 8,
	MSG_RESIZE = 9,	/* ID WIDTH HEIGHT */
	MSG_REOPEN = 10, /* ID */
	MSG_STOP = 11,
	MSG_STDINEOF = 12,
	MSG_OK = 64,
	MSG_ERROR = 65,	/* TEXT, STATUS is the errno where there is one */
	MSG_EXIT = 66,	/* ID PID STATUS OOM STARTED FINISHED, or STATUS STDOUT STDERR */
};

enum tag {
	TAG_ID = 1,
	TAG_BUNDLE = 2,
	TAG_STATE = 3,
	TAG_LOGPATH = 4,
	TAG_LOGMAX = 5,	  /* u64, 0 is no limit */
	TAG_LOGFILES = 6,
	TAG_FLAGS = 7,	  /* FLAG_* */
	TAG_MEMCG = 8,
	TAG_PID = 9,
	TAG_PID1 = 10,
	TAG_STATUS = 11,  /* as of wait(2) */
	TAG_OOM = 12,
	TAG_STARTED = 13, /* u64, nanoseconds since the epoch */
	TAG_FINISHED = 14,
	TAG_TEXT = 15,
	TAG_SIGNAL = 18,
	TAG_WIDTH = 19,
	TAG_HEIGHT = 20,
	TAG_VERSION = 21,
	/* the configuration a keeper is started with, on descriptor 3 */
	TAG_NETNS = 30,
	TAG_HOSTNAME = 31,
	TAG_SYSCTL = 32,   /* "path below /proc/sys=value", repeats */
	TAG_CGROUP = 33,   /* a cgroup.procs file, repeats */
	TAG_LAUNCHCG = 34, /* the same for launchers */
	TAG_OOMADJ = 35,   /* i32 */
	TAG_NAMESPACES = 36, /* NS_* */
	TAG_USERNS = 37,     /* a user namespace that shall own the pod's others */
	TAG_ROOTUID = 38,    /* its root, as the host numbers it */
	TAG_INITCG = 39,     /* cgroup.procs files that process 1 of the pod joins, repeats */
	TAG_FREEZELIM = 40,  /* how long others may take to freeze before a start, in milliseconds */
	TAG_LAUNCHLIM = 41,  /* how long a start may keep others frozen, in milliseconds */
	/* MSG_EXEC */
	TAG_ARG = 50, /* repeats */
	TAG_ENV = 51, /* repeats */
	TAG_CWD = 52,
	TAG_UID = 53,
	TAG_GID = 54,
	TAG_GROUPS = 55, /* u32s */
	TAG_UMASK = 56,
	TAG_CAPS = 57,	 /* u64s: bounding effective permitted inheritable ambient */
	TAG_RLIMIT = 58, /* u32 resource, u64 soft, u64 hard; repeats */
	TAG_NNP = 59,
	TAG_APPARMOR = 60,
	TAG_SELINUX = 61,
	TAG_SECCOMP = 62, /* u32 SECCOMP_FILTER_FLAG_*, u32 zero, sock_filters */
	TAG_FILES = 63,	  /* which of stdin 1, stdout 2, stderr 4 are passed */
	TAG_STDOUT = 64,  /* output, in this order */
	TAG_STDERR = 65,
	/* MSG_RUN and MSG_EXEC by another OCI runtime */
	TAG_RUNTIME = 70, /* an argument that all its commands begin with, repeats */
	TAG_PROCESS = 71, /* a process of the OCI runtime spec, in JSON */
	/* MSG_RUN, see hush.c */
	TAG_PIDNS = 72,	  /* the path of a PID namespace that others are in, which the container joins */
	TAG_FREEZER = 73, /* of a container that may trace all it sees: its cgroup's directory with freezer.state or
			     cgroup.freeze; empty where the machine has none */
	/* MSG_RUN of an ordinary container, see plain.c, beside the fields of MSG_EXEC from ARG on */
	TAG_ROOT = 80,	   /* its root on the host: all that is here is understood by who knows this */
	TAG_ROOTRO = 81,   /* which is to be read-only */
	TAG_NS = 82,	   /* u32 CLONE_NEW*, the path of a namespace to join, none of one to make; repeats */
	TAG_MOUNT = 83,	   /* see struct place_mount: u32 kind and flags, u64 set, clear, below and spread, and texts
			      with a NUL after each: target, source, options; repeats, in order */
	TAG_TREE = 84,	   /* what MOUNT_GROUPS shows: a name, NUL, a directory; repeats */
	TAG_MASKED = 85,   /* repeats */
	TAG_READONLY = 86, /* repeats */
};

/* What a mount is, and how. */
enum { MOUNT_BIND = 1, MOUNT_PROC, MOUNT_SYS, MOUNT_DEV, MOUNT_PTS, MOUNT_MQUEUE, MOUNT_GROUPS,
       MOUNT_UNIFIED };
enum { MOUNT_F_REC = 1, MOUNT_F_SPREADREC = 2, MOUNT_F_ALL = 3 };

enum { FLAG_TTY = 1, FLAG_STDIN = 2, FLAG_STDINONCE = 4 };
enum { FLAG_CGROUP1 = 8 }; /* the other runtime is to see cgroup v1 only */
enum { FLAG_NOSPARE = 16 }; /* of a keeper: all its containers are another runtime's */
enum { FLAG_CAPTURE = 32 }; /* of MSG_EXEC: answer with the output */
enum { NS_IPC = 1, NS_UTS = 2, NS_PID = 4 };
enum { STREAM_STDIN = 0, STREAM_STDOUT = 1, STREAM_STDERR = 2 };

#endif
