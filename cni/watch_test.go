package cni

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/utils/sysctl"
	"github.com/vishvananda/netlink"
)

// TestMissed removes what pods need, as somebody on the node may, and has it come back without a restart or another
// pod.
func TestMissed(t *testing.T) {
	out := outside(t)
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	must(t, n.Watch())
	a, b := setup(t, n, "aaa", PortMapping{HostPort: 8080, ContainerPort: 80}), setup(t, n, "bbb")
	serve(t, a.ns, "a", 80)
	serve(t, out, "out", 82)
	works := func(what string) {
		t.Helper()
		for _, x := range []struct {
			from      string
			addr, saw string
			who       string
		}{
			{"b", a.ip() + ":80", b.ip(), "a"},
			{"node", "127.0.0.1:8080", "10.213.0.1", "a"},
			{"b", "198.18.0.2:82", "198.18.0.1", "out"},
		} {
			eventually(t, what+": "+x.from+" does not reach "+x.addr, func() bool {
				ns := b.ns
				if x.from == "node" {
					ns = nil
				}
				who, saw, err := ask(t, ns, "tcp4", x.addr)
				return err == nil && who == x.who && saw == x.saw
			})
		}
		eventually(t, what+": not both pods are filtered", func() bool {
			all, err := setElements(n.own.builtin.nft, filter{testBridge}.pods(), nil)
			return err == nil && len(all) == 2
		})
		if v, err := sysctl.Sysctl("net/ipv6/conf/" + testBridge + "/accept_ra"); err == nil && v != "0" {
			t.Errorf("%s: the bridge takes router advertisements", what)
		}
	}
	ofBridge := func(f func(netlink.Link) error) func() error {
		return func() error {
			l, err := netlink.LinkByName(testBridge)
			if err != nil {
				return err
			}
			return f(l)
		}
	}
	remove := map[string]func() error{
		"table":  func() error { return removeTable(n.own.builtin.nft, table{bridge: testBridge}.table()) },
		"filter": func() error { return removeTable(n.own.builtin.nft, filter{testBridge}.table()) },
		"down":   ofBridge(netlink.LinkSetDown),
		"address": ofBridge(func(l netlink.Link) error {
			all, err := netlink.AddrList(l, netlink.FAMILY_V4)
			for _, a := range all {
				err = errors.Join(err, netlink.AddrDel(l, &a))
			}
			return err
		}),
		"bridge": ofBridge(netlink.LinkDel),
	}
	works("at first")
	for _, what := range []string{
		"table", "filter", "address", "bridge", "down", "filter", "address", "bridge",
		"down",
	} {
		must(t, remove[what]())
		works("without " + what)
	}
	// While nobody listens, too.
	n.unwatch()
	for _, what := range []string{"table", "filter", "address", "down"} {
		must(t, remove[what]())
	}
	next := reopen(t, c)
	must(t, next.Watch())
	works("with a bridge that was changed, after a restart")
	next.unwatch()
	for _, what := range []string{"table", "filter", "bridge"} {
		must(t, remove[what]())
	}
	next = reopen(t, c)
	must(t, next.Watch())
	works("after a restart")
	next.unwatch()
	teardown(t, n, b.Pod)
	teardown(t, n, a.Pod)
}

// TestNothingMissed: a node without pods has no bridge, and one that is purged none either.
func TestNothingMissed(t *testing.T) {
	n := open(t, testConfig(t, testBridge, testCIDR))
	must(t, n.Watch())
	must(t, n.own.restore())
	if _, err := netlink.LinkByName(testBridge); err == nil {
		t.Error("a bridge was made for nobody")
	}
	p := setup(t, n, "aaa")
	teardown(t, n, p.Pod)
	// The rest is what open checks when the test ends: that Purge leaves nothing, though its own events are heard.
}

// TestRestoreTriesAgain: what cannot be made at once, as without a descriptor left, is made without another event.
func TestRestoreTriesAgain(t *testing.T) {
	w := &watcher{own: &ownNetwork{}, log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	missed := make(chan struct{}, 1)
	missed <- struct{}{}
	tries := 0
	w.restoreAll(ctx, missed, func() error {
		if tries++; tries < 3 {
			return errors.New("too many open files")
		}
		cancel()
		return nil
	})
	if tries != 3 {
		t.Errorf("tried %d times", tries)
	}
}

// TestBridgeIsMade hears of the bridge while it is being made: that is nobody's change of it.
func TestBridgeIsMade(t *testing.T) {
	for range 10 {
		t.Run("", func(t *testing.T) {
			var log bytes.Buffer
			c := testConfig(t, testBridge, testCIDR)
			c.Log = slog.New(slog.NewTextHandler(&log, nil))
			n := open(t, c)
			must(t, n.Watch())
			p := setup(t, n, "aaa")
			n.unwatch()
			if strings.Contains(log.String(), "by somebody") {
				t.Error(log.String())
			}
			teardown(t, n, p.Pod)
		})
	}
}
