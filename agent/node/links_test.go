package node

import (
	"context"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestWatchAddresses has addresses of a machine of its own come and go.
func TestWatchAddresses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	find := func() (out []string) {
		all, err := net.InterfaceAddrs()
		if err != nil {
			t.Error(err)
		}
		for _, a := range all {
			out = append(out, a.String())
		}
		return out
	}
	var seen [][]string
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine, and the namespace with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Error(err)
			return
		}
		add := func(text string, act func(netlink.Link, *netlink.Addr) error) {
			a, err := netlink.ParseAddr(text)
			if err == nil {
				err = act(lo, a)
			}
			if err != nil {
				t.Error(err)
				cancel()
			}
		}
		WatchAddresses(ctx, find, func() {
			seen = append(seen, find())
			switch len(seen) {
			case 1:
				add("192.0.2.1/32", netlink.AddrAdd)
			case 2:
				add("2001:db8::1/128", netlink.AddrAdd)
			case 3:
				add("192.0.2.1/32", netlink.AddrDel)
			default:
				cancel()
			}
		}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	}()
	<-ended
	want := [][]string{nil, {"192.0.2.1/32"}, {"192.0.2.1/32", "2001:db8::1/128"}, {"2001:db8::1/128"}}
	if !slices.EqualFunc(seen, want, slices.Equal) {
		t.Errorf("seen %q", seen)
	}
}
