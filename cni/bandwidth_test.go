package cni

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestBandwidthOf(t *testing.T) {
	for text, want := range map[string]uint64{"1k": 1e3, "10M": 10e6, "1.5G": 1.5e9, "1Ki": 1024, "1P": 1e15} {
		b, err := bandwidthOf(map[string]string{ingressBandwidth: text})
		if err != nil || b.IngressRate != want || b.IngressBurst == 0 || b.EgressRate+b.EgressBurst != 0 {
			t.Errorf("%s: got %+v, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "fast", "-1M", "999", "2P", "1E", "1e99", "1 M"} {
		if b, err := bandwidthOf(map[string]string{egressBandwidth: text}); err == nil ||
			!strings.Contains(err.Error(), egressBandwidth) {
			t.Errorf("%q: got %+v, %v", text, b, err)
		}
	}
	if b, err := bandwidthOf(map[string]string{"other": "1M"}); b != nil || err != nil {
		t.Errorf("without: got %+v, %v", b, err)
	}
}

// TestForeignBandwidth has the plugin of this name limit a pod, which the kernel's queue on its interface shows.
func TestForeignBandwidth(t *testing.T) {
	plugins(t)
	c := testConfig(t, testBridge, testCIDR)
	n := open(t, c)
	dropLink(t, "btst9")
	list := foreignConf(t.TempDir(), "btst9", false)
	write(t, filepath.Join(c.ConfDir, "10-other.conflist"),
		list[:len(list)-2]+`,{"type": "bandwidth", "capabilities": {"bandwidth": true}}]}`)
	path, err := n.NewNamespace("aaa")
	must(t, err)
	p := Pod{ID: "aaa", NetNS: path, Annotations: map[string]string{ingressBandwidth: "a lot"}}
	if _, err := n.Setup(t.Context(), p); err == nil || !strings.Contains(err.Error(), ingressBandwidth) {
		t.Errorf("what is no quantity: got %v", err)
	}
	p.Annotations = map[string]string{ingressBandwidth: "8M"}
	_, err = n.Setup(t.Context(), p)
	must(t, err)
	bridge, err := netlink.LinkByName("btst9")
	must(t, err)
	links, err := netlink.LinkList()
	must(t, err)
	var limit *netlink.Tbf
	for _, l := range links {
		if l.Attrs().MasterIndex != bridge.Attrs().Index {
			continue
		}
		all, err := netlink.QdiscList(l)
		must(t, err)
		for _, q := range all {
			if tbf, ok := q.(*netlink.Tbf); ok {
				limit = tbf
			}
		}
	}
	if limit == nil || limit.Rate != 1e6 { // bytes a second
		t.Errorf("limit: got %+v, want 8 megabits a second", limit)
	}
	must(t, n.Teardown(t.Context(), p))
	must(t, n.RemoveNamespace("aaa"))
}
