package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// exits hears from the kernel whom processes of interest start, and what CPU time each thread had used when it ended.
// Nothing is missed between two looks, as by polling, and the scheduler's account is exact to the nanosecond. What the
// account leaves out is a process's end itself, above all giving back its memory, which comes after it is sent.
type exits struct {
	forks, stats int // sockets

	mu    sync.Mutex
	owner map[int]string // the subject that a process belongs to, by who started it
	used  map[int]*spent
}

// spent is what the threads of one process have used that have ended.
type spent struct {
	comm string
	cpu  time.Duration
}

const (
	cnIdxProc, cnValProc = 1, 1
	procEventFork        = 1
	cnHeader             = unix.SizeofNlMsghdr + 20
	quiet                = 100 * time.Millisecond // a socket without news for so long has said all
)

func newExits() (_ *exits, err error) {
	e := &exits{forks: -1, stats: -1, owner: map[int]string{}, used: map[int]*spent{}}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	if e.forks, err = eventSocket(unix.NETLINK_CONNECTOR, cnIdxProc); err != nil {
		return nil, fmt.Errorf("listen to forks: %w", err)
	}
	listen := make([]byte, 24)
	binary.NativeEndian.PutUint32(listen, cnIdxProc)
	binary.NativeEndian.PutUint32(listen[4:], cnValProc)
	binary.NativeEndian.PutUint16(listen[16:], 4)
	binary.NativeEndian.PutUint32(listen[20:], 1) // PROC_CN_MCAST_LISTEN
	if err := send(e.forks, unix.NLMSG_DONE, 0, listen); err != nil {
		return nil, fmt.Errorf("listen to forks: %w", err)
	}
	family, err := netlink.GenlFamilyGet(unix.TASKSTATS_GENL_NAME)
	if err != nil {
		return nil, fmt.Errorf("listen to exits: %w", err)
	}
	if e.stats, err = eventSocket(unix.NETLINK_GENERIC, 0); err != nil {
		return nil, fmt.Errorf("listen to exits: %w", err)
	}
	cpus, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return nil, err
	}
	mask := append([]byte(strings.TrimSpace(string(cpus))), 0)
	msg := binary.NativeEndian.AppendUint16([]byte{unix.TASKSTATS_CMD_GET, unix.TASKSTATS_GENL_VERSION, 0, 0},
		uint16(4+len(mask)))
	msg = append(binary.NativeEndian.AppendUint16(msg, unix.TASKSTATS_CMD_ATTR_REGISTER_CPUMASK), mask...)
	for len(msg)%4 != 0 {
		msg = append(msg, 0)
	}
	if err := send(e.stats, family.ID, unix.NLM_F_REQUEST, msg); err != nil {
		return nil, fmt.Errorf("listen to exits: %w", err)
	}
	go e.hear(e.forks, e.fork)
	go e.hear(e.stats, e.exit)
	return e, nil
}

func (e *exits) close() {
	for _, s := range []int{e.forks, e.stats} {
		if s >= 0 {
			_ = unix.Shutdown(s, unix.SHUT_RDWR)
			_ = unix.Close(s)
		}
	}
}

func eventSocket(protocol int, group uint32) (int, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, err
	}
	// A burst of a machine's events is held here until there is time to read it.
	err = errors.Join(unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20),
		unix.SetsockoptTimeval(s, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: int64(quiet / time.Microsecond)}),
		unix.Bind(s, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: group}))
	return s, err
}

func send(s int, kind, flags uint16, payload []byte) error {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = append(b, make([]byte, 8)...)
	return unix.Sendto(s, append(b, payload...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// hear has each message taken, until the socket is closed.
func (e *exits) hear(s int, take func([]byte)) {
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(s, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		e.mu.Lock()
		for b := buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				break
			}
			take(b[:size])
			b = b[min(len(b), (size+3)&^3):]
		}
		e.mu.Unlock()
	}
}

// own has all that pid starts from now on belong to a subject.
func (e *exits) own(pid int, subject string) {
	e.mu.Lock()
	e.owner[pid] = subject
	e.mu.Unlock()
}

func (e *exits) fork(b []byte) {
	if len(b) < cnHeader+32 || binary.NativeEndian.Uint32(b[cnHeader:]) != procEventFork {
		return
	}
	at := func(i int) int { return int(binary.NativeEndian.Uint32(b[cnHeader+16+4*i:])) }
	parent, child, group := at(1), at(2), at(3)
	if child != group {
		return // a thread
	}
	if o, ok := e.owner[parent]; ok {
		e.owner[child] = o
	} else {
		delete(e.owner, child) // a number of a process that was
	}
	delete(e.used, child)
}

func (e *exits) exit(b []byte) {
	const genl = unix.SizeofNlMsghdr + 4
	if len(b) < genl {
		return
	}
	for _, outer := range attributes(b[genl:]) {
		if outer.kind != unix.TASKSTATS_TYPE_AGGR_PID {
			continue // of the process as a whole, of which its threads were heard
		}
		for _, a := range attributes(outer.data) {
			var t unix.Taskstats
			// The kernel's may be longer or shorter than that of the headers, at its end.
			if a.kind == unix.TASKSTATS_TYPE_STATS && len(a.data) >= int(unsafe.Offsetof(t.Ac_tgid)+4) {
				copy(unsafe.Slice((*byte)(unsafe.Pointer(&t)), unsafe.Sizeof(t)), a.data)
				e.ended(&t)
			}
		}
	}
}

func (e *exits) ended(t *unix.Taskstats) {
	pid := int(t.Ac_tgid)
	s := e.used[pid]
	if s == nil {
		s = &spent{}
		e.used[pid] = s
	}
	var comm []byte
	for _, c := range t.Ac_comm {
		if c == 0 {
			break
		}
		comm = append(comm, byte(c))
	}
	s.comm = string(comm)
	s.cpu += time.Duration(t.Cpu_run_virtual_total)
}

type attribute struct {
	kind uint16
	data []byte
}

func attributes(b []byte) (out []attribute) {
	for len(b) >= 4 {
		size := int(binary.NativeEndian.Uint16(b))
		if size < 4 || size > len(b) {
			return out
		}
		out = append(out, attribute{binary.NativeEndian.Uint16(b[2:]) & 0x3fff, b[4:size]})
		b = b[min(len(b), (size+3)&^3):]
	}
	return out
}

// take returns what the processes of a subject that have ended have used, but for those of its daemon, whose threads
// come and go and whose own clock has them all. What ends after it is called is of the next.
func (e *exits) take(subject string, daemon int) (out []spent) {
	time.Sleep(2 * quiet) // the two sockets are read beside each other
	e.mu.Lock()
	defer e.mu.Unlock()
	for pid, s := range e.used {
		if e.owner[pid] == subject && pid != daemon {
			out = append(out, *s)
		}
		delete(e.used, pid)
	}
	return out
}
