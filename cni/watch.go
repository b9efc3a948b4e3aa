package cni

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// again is how long is waited after a repair before the next: somebody who removes what is made, as soon as it is made,
// is not to keep the node busy.
const again = 100 * time.Millisecond

// longest is how long is waited at most before a repair is tried again that has failed.
const longest = 30 * time.Second

// source is what the kernel tells of, and which of it matters.
type source struct {
	protocol int
	group    uint
	filter   []unix.SockFilter // leaves out what costs a wake-up for nothing; nil: nothing
	matters  func(kind uint16, data []byte) bool
}

func (w *watcher) sources() []source {
	return []source{
		{unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, lostLinks(w.own.conf.Bridge), w.lostBridge},
		{unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_IFADDR, only(unix.RTM_DELADDR), w.lostAddress},
		{unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES, onlyWith(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELTABLE), w.deletedTable},
	}
}

// watcher makes what pods of the network built in need, where it is missing.
type watcher struct {
	own *ownNetwork
	log *slog.Logger
}

// start begins to watch, and returns what ends it.
func (w *watcher) start() (end func(), err error) {
	ctx, cancel := context.WithCancel(context.Background())
	missed := make(chan struct{}, 1)
	missed <- struct{}{} // in case something was removed while nobody listened
	var wait sync.WaitGroup
	var open []*os.File
	end = sync.OnceFunc(func() {
		cancel()
		for _, f := range open {
			f.Close()
		}
		wait.Wait()
	})
	for _, s := range w.sources() {
		f, err := s.open()
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			continue // a kernel without nftables
		}
		if err != nil {
			end()
			return nil, err
		}
		open = append(open, f)
		wait.Go(func() {
			if err := listen(f, missed, s.matters); err != nil {
				w.log.Error("what others remove of the pods' network is not noticed any more",
					"bridge", w.own.conf.Bridge, "error", err)
			}
		})
	}
	wait.Go(func() { w.restoreAll(ctx, missed, w.own.restore) })
	return end, nil
}

// restoreAll repairs whenever something is missed, and tries further what fails, until ctx ends.
func (w *watcher) restoreAll(ctx context.Context, missed <-chan struct{}, restore func() error) {
	var failed string
	var retry <-chan time.Time
	for pause := again; ; {
		select {
		case <-ctx.Done():
			return
		case <-missed:
		case <-retry:
		}
		if err := restore(); err == nil {
			failed, retry, pause = "", nil, again
		} else {
			if failed != err.Error() {
				w.log.Warn("network of the pods is not restored, it is tried further",
					"bridge", w.own.conf.Bridge, "error", err)
			}
			pause = min(2*pause, longest)
			failed, retry = err.Error(), time.After(pause)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

// open opens a socket that the kernel tells of what happens in the group.
func (s source) open() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, s.protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if s.filter != nil {
		err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(s.filter)), Filter: &s.filter[0]})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (s.group - 1)})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("listen to the kernel: %w", err)
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// listen rings when a message matters, until the file is closed. What was lost, as too much happened at once, may have
// mattered.
func listen(from *os.File, missed chan<- struct{}, matters func(kind uint16, data []byte) bool) error {
	buf := make([]byte, 16<<10) // a message that is longer is cut, and rings
	for {
		k, err := from.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("listen to the kernel: %w", err)
		}
		ring := err != nil
		for b := buf[:max(k, 0)]; len(b) >= unix.NLMSG_HDRLEN; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				ring = true
				break
			}
			ring = ring || matters(binary.NativeEndian.Uint16(b[4:]), b[unix.NLMSG_HDRLEN:size])
			b = b[min(len(b), (size+3)&^3):]
		}
		if ring {
			select {
			case missed <- struct{}{}:
			default: // it is looked at all the same
			}
		}
	}
}

// lostBridge says that the bridge was deleted, or is down.
func (w *watcher) lostBridge(kind uint16, data []byte) bool {
	if len(data) < unix.SizeofIfInfomsg || unix.ByteSliceToString(attr(data[unix.SizeofIfInfomsg:], unix.IFLA_IFNAME)) != w.own.conf.Bridge {
		return false
	}
	return kind == unix.RTM_DELLINK || kind == unix.RTM_NEWLINK && binary.NativeEndian.Uint32(data[offsetFlags-unix.NLMSG_HDRLEN:])&unix.IFF_UP == 0
}

// lostAddress says that the bridge has lost an address.
func (w *watcher) lostAddress(kind uint16, data []byte) bool {
	return kind == unix.RTM_DELADDR && len(data) >= unix.SizeofIfAddrmsg &&
		int(binary.NativeEndian.Uint32(data[4:])) == w.own.builtin.bridges.get(w.own.conf.Bridge).known()
}

func (w *watcher) deletedTable(kind uint16, data []byte) bool {
	return kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE && len(data) >= 4 &&
		unix.ByteSliceToString(attr(data[4:], unix.NFTA_TABLE_NAME)) == filter{w.own.conf.Bridge}.table().Name
}
