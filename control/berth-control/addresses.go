package main

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
)

func parseRanges(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for one := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return nil, fmt.Errorf("read --service-cidr %q: it is a range as 10.96.0.0/16: %w", one, err)
		}
		if bits := p.Addr().BitLen() - p.Bits(); bits < 3 {
			return nil, fmt.Errorf("read --service-cidr %q: it has %d addresses, and a cluster needs at least 8", one, 1<<bits)
		}
		all = append(all, p.Masked())
	}
	if len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
		return nil, fmt.Errorf("read --service-cidr %q: there is one range, or one of IPv4 and one of IPv6", text)
	}
	return all, nil
}

// advertised is the address that pods and nodes are to use.
func advertised(f *serveFlags) (netip.Addr, error) {
	if f.advertise != "" {
		a, err := netip.ParseAddr(f.advertise)
		if err != nil {
			return a, fmt.Errorf("read --advertise-address: %w", err)
		}
		return a, nil
	}
	if a, err := netip.ParseAddr(f.bind); err == nil && !a.IsUnspecified() && !a.IsLoopback() {
		return a, nil
	}
	// Nothing is sent: the kernel chooses the address that it would send from.
	c, err := net.Dial("udp", "192.0.2.1:9") // no packet is sent
	if err != nil {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil // a machine without a network is reached by itself alone
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// reach is the address by which a server is reached that listens on bind.
func reach(bind string, advertise netip.Addr) string { return cmp.Or(local(bind), advertise.String()) }

// local is the address that a server listens on, if it is not all.
func local(bind string) string {
	if a, err := netip.ParseAddr(bind); err == nil && !a.IsUnspecified() {
		return a.String()
	}
	return ""
}

// hosts are the names and addresses that the API server is reached by.
func hosts(f *serveFlags, advertise netip.Addr, ranges []netip.Prefix) []string {
	all := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
		"127.0.0.1", "::1", advertise.String(),
	}
	for _, r := range ranges {
		all = append(all, r.Addr().Next().String())
	}
	if name, err := os.Hostname(); err == nil {
		all = append(all, name)
	}
	for _, a := range []string{local(f.bind), f.member.Address} {
		if a != "" {
			all = append(all, a)
		}
	}
	return append(all, f.names...)
}
