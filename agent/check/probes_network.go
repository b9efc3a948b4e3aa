package check

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func networkProbes() []probe {
	return []probe{
		{"bridge", true, "The built-in pod network needs a bridge; use a CNI plugin that does not.", func(context.Context, *env) answer {
			return tried(inNet(func() error {
				return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "berthcheck"}})
			}), "made in a throwaway namespace")
		}},
		{"veth", true, "Pods cannot be connected to the node.", func(context.Context, *env) answer {
			return tried(inNet(func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "berthcheck0"}, PeerName: "berthcheck1"})
			}), "made in a throwaway namespace")
		}},
		{"nf_tables", true, "Pods cannot reach beyond the node, and host ports do not work.", probeNftables},
		{"vxlan", false, "Nodes in different networks cannot be joined by the built-in overlay.", func(context.Context, *env) answer {
			return tried(inNet(func() error {
				return netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "berthcheck"}, VxlanId: 4711, Port: 8472})
			}), "made in a throwaway namespace")
		}},
		{"IPv6", false, "Pods get IPv4 addresses only.", probeIPv6},
		{"ip_forward", false, "The node does not pass packets on; berth switches net.ipv4.ip_forward on when its network starts.", probeForward},
	}
}

// inNet runs fn on a thread with a network namespace of its own, which the kernel takes down with everything in it.
func inNet(fn func() error) error {
	return thread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		return fn()
	})
}

// probeNftables writes the kind of rules the pod network has: a NAT chain with masquerade, and a destination map for
// ports.
func probeNftables(context.Context, *env) answer {
	err := inNet(func() error {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "berth-check"})
		chain := c.AddChain(&nftables.Chain{
			Name: "post", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
		c.AddChain(&nftables.Chain{
			Name: "pre", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
		})
		if err := c.Flush(); err != nil {
			return fmt.Errorf("add masquerade rule: %w", err)
		}
		return nil
	})
	return tried(err, "NAT chains and masquerade in a throwaway namespace")
}

func probeIPv6(context.Context, *env) answer {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return missing("not in this kernel, or ipv6.disable=1")
	}
	if v, _ := readLine("/proc/sys/net/ipv6/conf/all/disable_ipv6"); v == "1" {
		return limited("disabled by net.ipv6.conf.all.disable_ipv6")
	}
	return ok("on")
}

func probeForward(context.Context, *env) answer {
	v, err := readLine("/proc/sys/net/ipv4/ip_forward")
	switch {
	case errors.Is(err, os.ErrNotExist):
		return missing("no IPv4")
	case err != nil:
		return missing("%v", err)
	case v == "0":
		return limited("off")
	}
	return ok("on")
}
