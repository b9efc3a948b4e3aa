package cni

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// What filters look at, by its offset in a message that comes alone: struct nlmsghdr, behind it struct ifinfomsg, and
// behind that the first attribute of a link.
const (
	offsetType   = 4
	offsetFamily = unix.NLMSG_HDRLEN
	offsetFlags  = unix.NLMSG_HDRLEN + 8
	offsetLen    = unix.NLMSG_HDRLEN + unix.SizeofIfInfomsg
	offsetKind   = offsetLen + 2
	offsetName   = offsetLen + unix.SizeofRtAttr
)

func accept() unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 20} }
func ignore() unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} }

func load(size uint16, offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: offset}
}

// is jumps over as many instructions as it says where what was loaded is, or is not, that.
func is(value uint32, jt, jf uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jt: jt, Jf: jf}
}

// The filter loads numbers as the network orders them; those of messages are in the machine's order.
func swap16(v uint16) uint32 {
	return uint32(binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, v)))
}

func swap32(v uint32) uint32 {
	return binary.BigEndian.Uint32(binary.NativeEndian.AppendUint32(nil, v))
}

func only(kind uint16) []unix.SockFilter {
	return []unix.SockFilter{load(unix.BPF_H, offsetType), is(swap16(kind), 0, 1), accept(), ignore()}
}

// onlyWith leaves messages of the kind, and those that come together with others, which the filter does not see.
func onlyWith(kind uint16) []unix.SockFilter {
	var out []unix.SockFilter
	// The length of the first message is that of all, byte by byte.
	for i := range uint32(4) {
		place := i
		if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
			place = 3 - i
		}
		out = append(out,
			unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 8 * i},
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xff},
			unix.SockFilter{Code: unix.BPF_MISC | unix.BPF_TAX},
			load(unix.BPF_B, place),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X, Jt: 1},
			accept(),
		)
	}
	return append(out, only(kind)...)
}

// lostLinks leaves the link of that name when it is deleted, or is down and not told of as a port of a bridge. The
// kernel tells of each link of a pod, too, and puts the name of a link first.
func lostLinks(name string) []unix.SockFilter {
	data := make([]byte, (len(name)+1+3)&^3) // ends with a zero, and is filled with more
	copy(data, name)
	named := []unix.SockFilter{
		load(unix.BPF_H, offsetKind), is(swap16(unix.IFLA_IFNAME), 1, 0), accept(),
		load(unix.BPF_H, offsetLen), is(swap16(uint16(unix.SizeofRtAttr+len(name)+1)), 1, 0), ignore(),
	}
	for i := 0; i < len(data); i += 4 {
		named = append(named, load(unix.BPF_W, uint32(offsetName+i)), is(binary.BigEndian.Uint32(data[i:]), 1, 0), ignore())
	}
	return append(append([]unix.SockFilter{
		load(unix.BPF_H, offsetType),
		is(swap16(unix.RTM_DELLINK), 6, 0),
		is(swap16(unix.RTM_NEWLINK), 0, 4),
		load(unix.BPF_B, offsetFamily),
		is(unix.AF_UNSPEC, 0, 2),
		load(unix.BPF_W, offsetFlags),
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: swap32(unix.IFF_UP), Jf: 1},
		ignore(),
	}, named...), accept())
}
