package cni

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// table is the nftables table of one bridge:
//
//	table ip berth-<bridge> {
//	    map ports      { inet_proto . inet_service : ipv4_addr . inet_service }
//	    map addr-ports { ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	    chain guard       { raw prerouting: from the bridge to 127.0.0.0/8: drop }
//	    chain prerouting  { to an address of the node: dnat by the maps }
//	    chain output      { the same }
//	    chain postrouting { masquerade what would not find its way back }
//	}
//
// The rules are the same for any number of pods; a pod with a host port is an element in a map, with the sandbox ID as
// its comment. We speak netlink ourselves: starting the nft program takes longer than a pod's whole network.
//
// What other tables drop stays dropped: accepting here does not overrule a FORWARD policy of theirs.
type table struct {
	bridge string
	subnet netip.Prefix
	masq   bool
}

// errNoNFT says what a kernel without nf_tables costs.
var errNoNFT = errors.New("this kernel has no nf_tables: pods reach nothing outside the node, and have no host ports")

func (t table) table() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyIPv4, Name: TableName(t.bridge)}
}

func (t table) portMap() *nftables.Set {
	return t.set("ports", nftables.TypeInetProto, nftables.TypeInetService)
}

func (t table) addrPortMap() *nftables.Set {
	return t.set("addr-ports", nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
}

func (t table) maps() []*nftables.Set { return []*nftables.Set{t.portMap(), t.addrPortMap()} }

func (t table) set(name string, key ...nftables.SetDatatype) *nftables.Set {
	return &nftables.Set{
		Table: t.table(), Name: name, IsMap: true, Concatenation: true,
		// With a size, the kernel takes a hash table that never grows: one that grows while it is listed, lists not
		// all.
		Size:     4096,
		KeyType:  nftables.MustConcatSetType(key...),
		DataType: nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService),
	}
}

// ensure makes the table, or brings an older one up to date, in one transaction; elements stay.
func (t table) ensure() error {
	c, err := openNFT()
	if err != nil {
		return err
	}
	tab := c.AddTable(t.table())
	ports, addrPorts := t.portMap(), t.addrPortMap()
	for _, s := range []*nftables.Set{ports, addrPorts} {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("make nftables map %s: %w", s.Name, err)
		}
	}
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority,
		rules ...[]expr.Any,
	) {
		ch := c.AddChain(&nftables.Chain{Name: name, Table: tab, Type: kind, Hooknum: hook, Priority: prio})
		c.FlushChain(ch)
		for _, r := range rules {
			c.AddRule(&nftables.Rule{Table: tab, Chain: ch, Exprs: r})
		}
	}
	// The kernel may route 127.0.0.0/8 through the bridge, for host ports on the loopback address. A pod must not: it
	// could reach what the node keeps to itself.
	chain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw,
		join(ifName(expr.MetaKeyIIFNAME, t.bridge), inNet(dst, loopbackNet, true), verdict(expr.VerdictDrop)))
	dnat := [][]expr.Any{t.dnat(addrPorts, true), t.dnat(ports, false)}
	chain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, dnat...)
	chain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest, dnat...)
	chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource,
		t.postrouting()...)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make nftables table %s: %w", tab.Name, noNFT(err))
	}
	return nil
}

// postrouting hides addresses that the answer would not find.
func (t table) postrouting() [][]expr.Any {
	masq := []expr.Any{&expr.Masq{}}
	rules := [][]expr.Any{
		// From the node's loopback address to a pod.
		join(inNet(src, loopbackNet, true), ifName(expr.MetaKeyOIFNAME, t.bridge), masq),
		// From a pod through a host port to a pod, itself perhaps: it would answer over the bridge, with an address
		// that was not asked.
		join(translated(), inNet(src, t.subnet, true), inNet(dst, t.subnet, true), masq),
	}
	if t.masq {
		rules = append(rules, join(inNet(src, t.subnet, true), inNet(dst, t.subnet, false),
			inNet(dst, multicastNet, false), masq))
	}
	return rules
}

// exists says that the table is there: others may flush the whole ruleset. It is asked for each pod, so it is one
// message on a socket that is open.
func (t table) exists(nft *rtnlPool) (bool, error) { return tableExists(nft, t.table()) }

func tableExists(nft *rtnlPool, t *nftables.Table) (bool, error) {
	q := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, 0)
	q.AddRawData([]byte{byte(t.Family), unix.NFNETLINK_V0, 0, 0})
	q.AddRawData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(t.Name)).Serialize())
	err := nft.do(nil, q)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find nftables table %s: %w", t.Name, noNFT(err))
	}
	return true, nil
}

// removeTable deletes a table with all that is in it.
func removeTable(nft *rtnlPool, t *nftables.Table) error {
	if ok, err := tableExists(nft, t); err != nil || !ok {
		if errors.Is(err, errNoNFT) {
			return nil
		}
		return err
	}
	c, err := openNFT()
	if err != nil {
		return err
	}
	c.DelTable(t)
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove nftables table %s: %w", t.Name, err)
	}
	return nil
}

// noNFT names the errors of a kernel without nf_tables.
func noNFT(err error) error {
	for _, e := range []error{unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", errNoNFT, err)
		}
	}
	return err
}

// Parts of rules. Registers from 8 on are four bytes each, as the parts of a key are; 1 covers 8 to 11.

var (
	loopbackNet  = netip.MustParsePrefix("127.0.0.0/8")
	multicastNet = netip.MustParsePrefix("224.0.0.0/4")
)

const (
	src = 12 // offsets in the IPv4 header
	dst = 16
)

func join(parts ...[]expr.Any) (all []expr.Any) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func verdict(k expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: k}} }

func ifName(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

func inNet(offset uint32, net netip.Prefix, want bool) []expr.Any {
	op := expr.CmpOpEq
	if !want {
		op = expr.CmpOpNeq
	}
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-net.Bits()))
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: net.Masked().Addr().AsSlice()},
	}
}

// translated: conntrack has changed the destination of this connection (IPS_DST_NAT).
func translated() []expr.Any {
	const dstNAT = 1 << 5
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(dstNAT),
			Xor: make([]byte, 4),
		},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)},
	}
}

// dnat looks protocol and port, behind the address if wanted, up in a map, and sends the connection where that says.
func (t table) dnat(m *nftables.Set, withAddr bool) []expr.Any {
	rule := []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
	reg := uint32(8)
	if withAddr {
		rule = append(rule, &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: dst, Len: 4})
		reg++
	}
	return append(rule,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg},
		&expr.Payload{DestRegister: reg + 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Lookup{SourceRegister: 8, DestRegister: 8, IsDestRegSet: true, SetID: m.ID, SetName: m.Name},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 8, RegProtoMin: 9, Specified: true},
	)
}
