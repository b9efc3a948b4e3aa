package cni

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFilters has the kernel filter messages as it sends them: those of pods' links and filters wake nobody up.
func TestFilters(t *testing.T) {
	message := func(kind uint16, data []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(data)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		return append(append(b, make([]byte, unix.NLMSG_HDRLEN-len(b))...), data...)
	}
	link := func(kind uint16, family byte, flags uint32, first uint16, name string) []byte {
		info := make([]byte, unix.SizeofIfInfomsg)
		info[0] = family
		binary.NativeEndian.PutUint32(info[8:], flags)
		info = binary.NativeEndian.AppendUint16(info, uint16(unix.SizeofRtAttr+len(name)+1))
		info = binary.NativeEndian.AppendUint16(info, first)
		info = append(append(info, name...), 0)
		return message(kind, append(info, make([]byte, -len(info)&3)...))
	}
	const table, set = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWSETELEM
	links, tables := lostLinks("berth0"), onlyWith(table)
	for _, c := range []struct {
		what   string
		filter []unix.SockFilter
		sent   []byte
		heard  bool
	}{
		{"the bridge is deleted", links, link(unix.RTM_DELLINK, unix.AF_UNSPEC, unix.IFF_UP, unix.IFLA_IFNAME, "berth0"), true},
		{"the bridge is down", links, link(unix.RTM_NEWLINK, unix.AF_UNSPEC, 0, unix.IFLA_IFNAME, "berth0"), true},
		{"the bridge is up", links, link(unix.RTM_NEWLINK, unix.AF_UNSPEC, unix.IFF_UP, unix.IFLA_IFNAME, "berth0"), false},
		{"a port is down", links, link(unix.RTM_NEWLINK, unix.AF_BRIDGE, 0, unix.IFLA_IFNAME, "berth0"), false},
		{"a pod's link is deleted", links, link(unix.RTM_DELLINK, unix.AF_UNSPEC, 0, unix.IFLA_IFNAME, "bth0123456789ab"), false},
		{"a link of a longer name is down", links, link(unix.RTM_NEWLINK, unix.AF_UNSPEC, 0, unix.IFLA_IFNAME, "berth01"), false},
		{"a link of as long a name is down", links, link(unix.RTM_NEWLINK, unix.AF_UNSPEC, 0, unix.IFLA_IFNAME, "berth1"), false},
		{"another attribute comes first", links, link(unix.RTM_DELLINK, unix.AF_UNSPEC, 0, unix.IFLA_MTU, "bth0123456789ab"), true},
		{"an address", links, message(unix.RTM_NEWADDR, make([]byte, 40)), false},
		{"an element", tables, message(set, make([]byte, 300)), false},
		{"a table is deleted", tables, message(table, make([]byte, 40)), true},
		{"an element and a table", tables, append(message(set, make([]byte, 240)), message(table, make([]byte, 40))...), true},
	} {
		if heard := hears(t, c.filter, c.sent); heard != c.heard {
			t.Errorf("%s: heard is %v", c.what, heard)
		}
	}
}

// hears says whether who has the filter hears of a message.
func hears(t *testing.T, filter []unix.SockFilter, sent []byte) bool {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	must(t, err)
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	must(t, unix.SetsockoptSockFprog(ends[1], unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}))
	if _, err := unix.Write(ends[0], sent); err != nil && err != unix.EPERM {
		t.Fatal(err)
	}
	n, err := unix.Read(ends[1], make([]byte, 1<<10))
	if err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return n == len(sent)
}
