package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// rtnl is a netlink socket that takes several requests in one system call. The kernel carries all of them out before
// that call returns, so they are also one step to a crash of this process. The socket belongs to the network namespace
// it was opened in, whatever thread uses it later.
type rtnl struct {
	fd int
}

// rooms are what answers are read into: as much of a list as the kernel sends at once.
var rooms = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func openRTNL(protocol int) (*rtnl, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	// An acknowledgement then has the kernel's words, and not our request again. Old kernels do without.
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	return &rtnl{fd: fd}, nil
}

// errInterrupted: what was listed changed meanwhile, and something may be missing.
var errInterrupted = errors.New("list changed while it was read")

func (r *rtnl) close() { unix.Close(r.fd) }

// do carries out the requests in order and returns the first error; requests after one that failed are carried out too.
// The messages that answer them, acknowledgements apart, are handed to reply, which may be nil and must not keep them.
func (r *rtnl) do(reply func(data []byte), reqs ...*nl.NetlinkRequest) error {
	var out []byte
	for i, q := range reqs {
		q.Flags |= unix.NLM_F_REQUEST | unix.NLM_F_ACK
		q.Seq = uint32(i + 1)
		out = append(out, q.Serialize()...)
	}
	if err := unix.Sendto(r.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send netlink request: %w", err)
	}
	room := rooms.Get().(*[32 << 10]byte)
	defer rooms.Put(room)
	in := room[:]
	var first error
	for left := len(reqs); left > 0; {
		n, _, err := unix.Recvfrom(r.fd, in, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("receive netlink answer: %w", err)
		}
		for b := in[:n]; len(b) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				return errors.New("receive netlink answer: malformed")
			}
			data, flags := b[unix.NLMSG_HDRLEN:size], binary.NativeEndian.Uint16(b[6:])
			if flags&unix.NLM_F_DUMP_INTR != 0 && first == nil {
				first = errInterrupted
			}
			switch binary.NativeEndian.Uint16(b[4:]) {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE: // the latter ends a list, and carries an errno too
				left--
				if err := ackError(data, flags); err != nil && first == nil {
					first = err
				}
			default:
				if reply != nil {
					reply(data)
				}
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
	return first
}

// ackError reads an acknowledgement: errno, the header of the request, attributes with the kernel's reason.
func ackError(data []byte, flags uint16) error {
	if len(data) < 4 {
		return errors.New("receive netlink answer: malformed")
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
	if errno == 0 {
		return nil
	}
	if flags&unix.NLM_F_ACK_TLVS != 0 && len(data) > 4+unix.NLMSG_HDRLEN {
		if attrs, err := nl.ParseRouteAttr(data[4+unix.NLMSG_HDRLEN:]); err == nil {
			for _, a := range attrs {
				if a.Attr.Type == nl.NLMSGERR_ATTR_MSG {
					return fmt.Errorf("%w: %s", errno, unix.ByteSliceToString(a.Value))
				}
			}
		}
	}
	return errno
}

// rtnlPool keeps sockets of the namespace of the process open, since opening one costs as much as a request. Each is
// used by one caller at a time: pods do not wait for each other here, only in the kernel.
type rtnlPool struct {
	protocol int // unix.NETLINK_...

	mu   sync.Mutex
	free []*rtnl
}

func (p *rtnlPool) do(reply func([]byte), reqs ...*nl.NetlinkRequest) error {
	p.mu.Lock()
	var r *rtnl
	if n := len(p.free); n > 0 {
		r, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if r == nil {
		var err error
		if r, err = openRTNL(p.protocol); err != nil {
			return err
		}
	}
	err := r.do(reply, reqs...)
	p.mu.Lock()
	defer p.mu.Unlock()
	// After any error the socket may hold answers that nobody read.
	if err != nil || len(p.free) >= 8 {
		r.close()
	} else {
		p.free = append(p.free, r)
	}
	return err
}

func (p *rtnlPool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.free {
		r.close()
	}
	p.free = nil
}

// inNetNS calls f on a thread in the network namespace. It goes by the open file, which still is the namespace that was
// meant when somebody has taken its path away.
func inNetNS(netns *os.File, f func() error) error {
	return ns.WithNetNSPath(fmt.Sprintf("/proc/self/fd/%d", netns.Fd()), func(ns.NetNS) error { return f() })
}

// Requests.

func linkRequest(flags int, up bool) *nl.NetlinkRequest {
	q := nl.NewNetlinkRequest(unix.RTM_NEWLINK, flags)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	if up {
		msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	}
	q.AddData(msg)
	return q
}

func nameAttr(name string) *nl.RtAttr {
	return nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name))
}

// indexRequest asks for an interface by name.
func indexRequest(name string) *nl.NetlinkRequest {
	q := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	q.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	q.AddData(nameAttr(name))
	q.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(skipStats)))
	return q
}

// indexReply stores the index of the interface in an answer to indexRequest.
func indexReply(index *int) func([]byte) {
	return func(data []byte) {
		if len(data) >= unix.SizeofIfInfomsg {
			*index = int(int32(binary.NativeEndian.Uint32(data[4:])))
		}
	}
}

// skipStats leaves the counters out of an answer (RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h).
const skipStats = 1 << 3
