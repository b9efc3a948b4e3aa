package cni

import (
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types/create"
)

func FuzzConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "x"}]}`))
	f.Add([]byte(`{"cniVersion": "0.4.0", "name": "n", "type": "x", "capabilities": {"a": true}}`))
	f.Add([]byte(`{"plugins": null, "type": "x", "name": 7}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if list, err := parseConf(data); err == nil && list == nil {
			t.Error("neither a list nor an error")
		}
	})
}

func FuzzPluginConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion": "1.0.0", "name": "n", "bridge": "b", "subnet": "10.0.0.0/8",
		"ipam": {"type": "berth-ipam", "subnet": "10.0.0.0/8", "dataDir": "/d"},
		"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp", "hostIP": "::1"}]},
		"prevResult": {"ips": [{"address": "10.0.0.2/8"}]}}`))
	f.Add([]byte(`{"bridge": "a/b", "mtu": -1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := parseBridgeConf(data); err == nil && c.IPAM.Type == pluginIPAM {
			gateway, last, err := usable(c.IPAM.Subnet)
			if err != nil || gateway.Compare(last) >= 0 {
				t.Errorf("accepted subnet %s: %v", c.IPAM.Subnet, err)
			}
		}
		if c, err := parsePortMapConf(data); err == nil {
			ports, err := c.ports(netip.MustParseAddr("10.0.0.2"))
			for _, p := range ports {
				if e := p.element("id"); err == nil && (len(e.Val) != 8 || len(e.Key) != 8 && len(e.Key) != 12) {
					t.Errorf("port %s: element %+v", p, e)
				}
			}
		}
		_, _ = previous(data)
	})
}

func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"cniVersion": "1.0.0", "interfaces": [{"name": "eth0", "sandbox": "/x", "mac": "no"}],
		"ips": [{"interface": 5, "address": "10.0.0.2/8"}]}`))
	f.Add([]byte(`{"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/8"}}`))
	f.Add([]byte(`{"cniVersion": "1.0.0", "interfaces": [null], "ips": [null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, err := create.CreateFromBytes(data)
		if err != nil {
			return
		}
		if r, err := convert(raw); err == nil && len(r.IPs) == 0 {
			t.Error("a result without an address was accepted")
		}
		_, _ = ipFromResult(raw)
	})
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"conf": {"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "x"}]},
		"netns": "/x", "args": [["a", "b"]]}`))
	f.Add([]byte(`{"conf": null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if rec, err := parseRecord(data); err == nil && rec == nil {
			t.Error("neither a record nor an error")
		}
	})
}

func FuzzAck(f *testing.F) {
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, uint16(0x200))
	f.Fuzz(func(t *testing.T, data []byte, flags uint16) {
		_ = ackError(data, flags)
		_ = parseElements(data)
	})
}
