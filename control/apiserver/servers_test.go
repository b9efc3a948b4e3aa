package apiserver

import (
	"net/netip"
	"slices"
	"testing"
)

func TestReachable(t *testing.T) {
	parse := func(texts ...string) []netip.AddrPort {
		var all []netip.AddrPort
		for _, s := range texts {
			all = append(all, netip.MustParseAddrPort(s))
		}
		return all
	}
	for name, c := range map[string]struct{ all, want []netip.AddrPort }{
		"none":           {},
		"only loopback":  {parse("127.0.0.1:6443", "[::1]:6443"), nil},
		"in order, once": {parse("10.0.0.2:6443", "10.0.0.1:6443", "10.0.0.2:6443"), parse("10.0.0.1:6443", "10.0.0.2:6443")},
		"another port":   {parse("10.0.0.2:7443", "10.0.0.1:6443"), parse("10.0.0.1:6443")},
		"another family": {parse("[fd00::1]:6443", "10.0.0.1:6443"), parse("10.0.0.1:6443")},
		"loopback aside": {parse("127.0.0.1:1", "10.0.0.1:6443"), parse("10.0.0.1:6443")},
	} {
		if got := reachable(c.all); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
