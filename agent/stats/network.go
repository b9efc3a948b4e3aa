package stats

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Interface is what went over one network interface since it was made.
type Interface struct {
	Name                         string
	RxBytes, RxPackets, RxErrors uint64
	RxDropped                    uint64
	TxBytes, TxPackets, TxErrors uint64
	TxDropped                    uint64
}

// network reads the counters of a pod's interfaces through one of its processes. Only the directory of the process is
// kept open: an open file of the network would keep the pod's network alive after the pod.
type network struct {
	proc int // /proc/<pid>, 0: none
	had  []Interface
	at   time.Time
}

// stale is how old the counters of a pod may be that does not run: others can send to it all the same.
const stale = 10 * time.Second

func (n *network) close() {
	if n.proc > 0 {
		unix.Close(n.proc)
	}
	n.proc = 0
}

func (n *network) read(awake bool, pid func() int) ([]Interface, time.Time) {
	now := time.Now()
	if !awake && now.Sub(n.at) < stale {
		return n.had, n.at
	}
	for range 2 {
		if n.proc == 0 {
			p := pid()
			if p == 0 {
				break
			}
			fd, err := unix.Open("/proc/"+strconv.Itoa(p), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				break
			}
			n.proc = fd
		}
		// The directory is that of this very process: once it has ended nothing is found in it, whoever has its number
		// then.
		if data, ok := readAt(n.proc, "net/dev"); ok {
			n.had, n.at = parseNetDev(data), now
			return n.had, n.at
		}
		n.close()
	}
	return n.had, n.at
}

func readAt(dir int, name string) ([]byte, bool) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false
	}
	defer unix.Close(fd)
	buf := make([]byte, 0, 4096)
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := unix.Read(fd, buf[len(buf):cap(buf)])
		if err != nil {
			return nil, false
		}
		buf = buf[:len(buf)+n]
		// The kernel renders as many lines as fit into a page, so that with room for another there is none; to ask
		// again would cost half as much as the file.
		if n < 3<<10 && cap(buf)-len(buf) > 512 || n == 0 {
			return buf, true
		}
	}
}

// parseNetDev reads /proc/net/dev: "name: bytes packets errs drop fifo frame compressed multicast", then the same of
// what was sent: "bytes packets errs drop fifo colls carrier compressed". The loopback is nobody's business.
func parseNetDev(data []byte) []Interface {
	var out []Interface
	for line := range bytes.Lines(data) {
		name, rest, ok := bytes.Cut(line, []byte(":"))
		name = bytes.TrimSpace(name)
		if !ok || string(name) == "lo" {
			continue
		}
		var v [12]uint64
		n := 0
		for f := range bytes.FieldsSeq(rest) {
			if v[n], ok = counterOf(f); !ok {
				break
			}
			if n++; n == len(v) {
				break
			}
		}
		if n == len(v) {
			out = append(out, Interface{string(name), v[0], v[1], v[2], v[3], v[8], v[9], v[10], v[11]})
		}
	}
	return out
}

func counterOf(f []byte) (uint64, bool) {
	v, err := strconv.ParseUint(string(f), 10, 64)
	return v, err == nil
}

// nodeInterfaces leaves out the node's ends of pods' interfaces, whose traffic passes the others too if it leaves the
// node.
func nodeInterfaces(all []Interface) []Interface {
	var out []Interface
	for _, i := range all {
		// The names that container networks give them.
		if !slices.ContainsFunc([]string{"bth", "veth", "cali", "lxc"}, func(p string) bool { return strings.HasPrefix(i.Name, p) }) {
			out = append(out, i)
		}
	}
	return out
}
