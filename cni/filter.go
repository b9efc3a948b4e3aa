package cni

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// OpenAnnotation on a pod, with the value "off", takes the filter of the network built in off it: the pod may send what
// it likes, as a router, a DHCP server, or one that shares an address with others has to.
const OpenAnnotation = "berth.node/network-filter"

// openArg is how the plugin is told, in CNI_ARGS.
const openArg = "BERTH_NETWORK_FILTER"

// filter is the nftables table that keeps pods from speaking for others on a bridge:
//
//	table bridge berth-<bridge> {
//	    set ports { ifname }
//	    set pods  { ifname . ether_addr . ipv4_addr }
//	    chain prerouting {
//	        not from @ports: accept
//	        from UDP port 67: drop
//	        IPv4 with port, sender and source in @pods: accept
//	        ARP with port, sender (of the frame, and of the message) and address in @pods: accept
//	        drop
//	    }
//	}
//
// What is not IPv4 or ARP is dropped, and with it all of IPv6: pods have no address of it here, and what they could
// send without one are router and neighbour advertisements. It is dropped before the bridge learns where the sender is.
// The rules are the same for any number of pods; a pod is an element of each set, with the sandbox ID as its comment,
// and is there before its port is.
type filter struct{ bridge string }

// errNoFilter says what a kernel without nftables for bridges costs.
var errNoFilter = errors.New("this kernel has no nf_tables for bridges (CONFIG_NF_TABLES_BRIDGE): a pod can use " +
	"another's address, and speak as a router or a DHCP server")

// filterPriority is before everybody who filters (-200), and before those who translate (-300).
const filterPriority = nftables.ChainPriority(-310)

// maxFiltered bounds the sets, for the reason that t.set has.
const maxFiltered = 8192

func (f filter) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyBridge, Name: TableName(f.bridge)}
}

func (f filter) ports() *nftables.Set {
	return &nftables.Set{Table: f.table(), Name: "ports", KeyType: nftables.TypeIFName, Size: maxFiltered}
}

func (f filter) pods() *nftables.Set {
	return &nftables.Set{
		Table: f.table(), Name: "pods", Concatenation: true, Size: maxFiltered,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeEtherAddr, nftables.TypeIPAddr),
	}
}

// guest is a pod that is filtered.
type guest struct {
	id   string
	addr netip.Addr
}

// elements are those of a pod in both sets.
func (f filter) elements(g guest) (port, pod nftables.SetElement) {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, vethName(f.bridge, g.id))
	// Each part of a key fills words of four bytes.
	key := slices.Concat(name, macOf(g.addr), []byte{0, 0}, g.addr.AsSlice())
	return nftables.SetElement{Key: name, Comment: g.id}, nftables.SetElement{Key: key, Comment: g.id}
}

// ensure makes the table, or brings an older one up to date, with the pods in it, in one transaction.
func (f filter) ensure(guests []guest) error {
	c, err := openNFT()
	if err != nil {
		return err
	}
	tab := c.AddTable(f.table())
	ports, pods := f.ports(), f.pods()
	for _, s := range []*nftables.Set{ports, pods} {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("make nftables set %s: %w", s.Name, err)
		}
	}
	priority := filterPriority
	chain := c.AddChain(&nftables.Chain{
		Name: "prerouting", Table: tab, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: &priority,
	})
	c.FlushChain(chain)
	for _, r := range f.rules(ports, pods) {
		c.AddRule(&nftables.Rule{Table: tab, Chain: chain, Exprs: r})
	}
	if err := f.add(c, guests...); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make nftables table bridge %s: %w", tab.Name, noFilter(err))
	}
	return nil
}

func (f filter) rules(ports, pods *nftables.Set) [][]expr.Any {
	const udp, dhcpServer = unix.IPPROTO_UDP, 67
	accept := verdict(expr.VerdictAccept)
	from := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 8}}
	return [][]expr.Any{
		join(from, []expr.Any{
			&expr.Lookup{SourceRegister: 8, SetName: ports.Name, SetID: ports.ID, Invert: true},
		}, accept),
		join(frame(unix.ETH_P_IP), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{udp}},
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 2},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, dhcpServer}},
			&expr.Counter{},
		}, verdict(expr.VerdictDrop)),
		join(frame(unix.ETH_P_IP), from, ether, network(src, 4, 14), known(pods), accept),
		join(frame(unix.ETH_P_ARP), []expr.Any{
			// Of Ethernet and IPv4, with addresses of 6 and 4 bytes: the fields behind have their places by that.
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 0, Len: 6},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{0, 1, 8, 0, 6, 4}},
		}, from, ether, network(arpAddress, 4, 14), known(pods), network(arpSender, 6, 12), known(pods), accept),
		join([]expr.Any{&expr.Counter{}}, verdict(expr.VerdictDrop)),
	}
}

// Offsets in an ARP message: the sender's hardware address and its IPv4 address.
const (
	arpSender  = 8
	arpAddress = 14
)

// ether loads the sender of a frame behind the name of its port.
var ether = []expr.Any{&expr.Payload{DestRegister: 12, Base: expr.PayloadBaseLLHeader, Offset: 6, Len: 6}}

// frame: the frame is of that type. It is read where it stands: for one with a VLAN tag the kernel says what is behind
// the tag, and one of VLAN 0 is received as if it had none.
func frame(kind uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseLLHeader, Offset: 12, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{byte(kind >> 8), byte(kind)}},
	}
}

func network(offset, size, register uint32) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
	}
}

func known(s *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: 8, SetName: s.Name, SetID: s.ID}}
}

func (f filter) add(c *nftables.Conn, guests ...guest) error {
	ports, pods := make([]nftables.SetElement, len(guests)), make([]nftables.SetElement, len(guests))
	for i, g := range guests {
		ports[i], pods[i] = f.elements(g)
	}
	return errors.Join(inParts(f.ports(), ports, c.SetAddElements), inParts(f.pods(), pods, c.SetAddElements))
}

// admit adds a pod. One that is there already stays.
func (f filter) admit(n *nftSocket, g guest) error {
	if err := n.do(func(c *nftables.Conn) error { return f.add(c, g) }); err != nil {
		return fmt.Errorf("filter pod: %w", noFilter(err))
	}
	return nil
}

// dismiss removes a pod.
func (f filter) dismiss(n *nftSocket, g guest) error {
	port, pod := f.elements(g)
	err := n.do(func(c *nftables.Conn) error {
		return errors.Join(c.SetDeleteElements(f.ports(), []nftables.SetElement{port}),
			c.SetDeleteElements(f.pods(), []nftables.SetElement{pod}))
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("end filter of pod: %w", noFilter(err))
	}
	return nil
}

// collect removes the pods that are not live.
func (f filter) collect(nft *rtnlPool, live func(id string) bool) error {
	return unmap(func() (gone []mapped, err error) {
		for _, s := range []*nftables.Set{f.ports(), f.pods()} {
			all, err := setElements(nft, s, nil)
			if err != nil {
				return nil, err
			}
			for _, e := range all {
				if !live(e.owner) {
					gone = append(gone, e)
				}
			}
		}
		return gone, nil
	})
}

// noFilter names the errors of a kernel without nftables for bridges.
func noFilter(err error) error {
	if err = noNFT(err); errors.Is(err, errNoNFT) {
		return fmt.Errorf("%w: %s", errNoFilter, strings.TrimPrefix(err.Error(), errNoNFT.Error()+": "))
	}
	return err
}

// unfiltered says whether the pod's annotation has taken the filter off it.
func unfiltered(args string) bool {
	for kv := range strings.SplitSeq(args, ";") {
		if kv == openArg+"=off" {
			return true
		}
	}
	return false
}
