package cni

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// port is one host port of a pod.
type port struct {
	proto         byte
	addr          netip.Addr // of the host; not valid = all
	host, podPort uint16
	pod           netip.Addr
	protoName     string
}

func (p port) String() string {
	if p.addr.IsValid() {
		return fmt.Sprintf("%s:%d/%s", p.addr, p.host, p.protoName)
	}
	return fmt.Sprintf("%d/%s", p.host, p.protoName)
}

// element is the port in its map. Each part of a key fills four bytes.
func (p port) element(id string) nftables.SetElement {
	var key []byte
	if p.addr.IsValid() {
		key = append(key, p.addr.AsSlice()...)
	}
	key = append(key, p.proto, 0, 0, 0)
	key = append(binary.BigEndian.AppendUint16(key, p.host), 0, 0)
	val := append(binary.BigEndian.AppendUint16(p.pod.AsSlice(), p.podPort), 0, 0)
	return nftables.SetElement{Key: key, Val: val, Comment: id}
}

// addPorts maps the host ports of a sandbox, all or none.
func (t table) addPorts(id string, ports []port) error {
	c, err := openNFT()
	if err != nil {
		return err
	}
	for _, p := range ports {
		if err := c.SetAddElements(t.mapOf(p), []nftables.SetElement{p.element(id)}); err != nil {
			return fmt.Errorf("map host port %s: %w", p, err)
		}
	}
	if err := c.Flush(); err != nil {
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("map host ports %v: one is taken by another pod: %w", ports, err)
		}
		return fmt.Errorf("map host ports %v: %w", ports, noNFT(err))
	}
	return nil
}

// mapOf is the map that a port belongs to.
func (t table) mapOf(p port) *nftables.Set {
	if p.addr.IsValid() {
		return t.addrPortMap()
	}
	return t.portMap()
}

// removePorts unmaps host ports of a sandbox. Each is looked at before: a sandbox whose port was refused, since another
// has it, must not take it away when it ends.
func (t table) removePorts(nft *rtnlPool, id string, ports []port) error {
	return unmap(func() (gone []mapped, err error) {
		for _, p := range ports {
			m, key := t.mapOf(p), p.element(id).Key
			found, err := setElements(nft, m, key)
			if err != nil {
				return nil, err
			}
			for _, e := range found {
				if e.owner == id {
					gone = append(gone, mapped{m, key, id})
				}
			}
		}
		return gone, nil
	})
}

// collectPorts unmaps all host ports of the sandboxes that dead says.
func (t table) collectPorts(nft *rtnlPool, dead func(id string) bool) error {
	return unmap(func() (gone []mapped, err error) {
		for _, m := range t.maps() {
			all, err := setElements(nft, m, nil)
			if err != nil {
				return nil, err
			}
			for _, e := range all {
				if dead(e.owner) {
					gone = append(gone, e)
				}
			}
		}
		return gone, nil
	})
}

// unmap removes what find finds, all or none; and looks again when somebody else removed some of it in between.
func unmap(find func() ([]mapped, error)) error {
	for try := 0; ; try++ {
		gone, err := find()
		if err == nil && len(gone) == 0 {
			return nil
		}
		var c *nftables.Conn
		if err == nil {
			c, err = openNFT()
		}
		if err == nil {
			err = deleteElements(c, gone)
		}
		if err == nil {
			err = c.Flush()
		}
		if err == nil {
			return nil
		}
		if try == 10 || !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove nftables elements: %w", noNFT(err))
		}
	}
}

// deleteElements has c remove elements of any sets.
func deleteElements(c *nftables.Conn, gone []mapped) error {
	keys := map[string][]nftables.SetElement{}
	in := map[string]*nftables.Set{}
	for _, e := range gone {
		in[e.in.Name] = e.in
		keys[e.in.Name] = append(keys[e.in.Name], nftables.SetElement{Key: e.key})
	}
	for name, all := range keys {
		if err := inParts(in[name], all, c.SetDeleteElements); err != nil {
			return err
		}
	}
	return nil
}

// mapped is an element of one of the maps.
type mapped struct {
	in    *nftables.Set
	key   []byte
	owner string // the sandbox ID
}

// setElements lists the elements of a map or set, or that with the key; none when there is no such one.
func setElements(nft *rtnlPool, m *nftables.Set, key []byte) ([]mapped, error) {
	for try := 0; ; try++ {
		q := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, 0)
		q.AddRawData([]byte{byte(m.Table.Family), unix.NFNETLINK_V0, 0, 0})
		q.AddRawData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(m.Table.Name)).Serialize())
		q.AddRawData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(m.Name)).Serialize())
		if key == nil {
			q.Flags |= unix.NLM_F_DUMP
		} else {
			list := nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, nil)
			elem := list.AddRtAttr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil)
			k := elem.AddRtAttr(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, nil)
			k.AddRtAttr(unix.NFTA_DATA_VALUE, key)
			q.AddRawData(list.Serialize())
		}
		var all []mapped
		err := nft.do(func(data []byte) { all = append(all, parseElements(data)...) }, q)
		for i := range all {
			all[i].in = m
		}
		switch {
		case err == nil:
			return all, nil
		case errors.Is(err, unix.ENOENT):
			return nil, nil
		case try == 100 || !errors.Is(err, errInterrupted):
			return nil, fmt.Errorf("list nftables elements: %w", noNFT(err))
		}
	}
}

// parseElements reads an answer of nf_tables: a header of four bytes, then attributes within attributes.
func parseElements(data []byte) (all []mapped) {
	if len(data) < 4 {
		return nil
	}
	for _, e := range attrs(attr(data[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS), unix.NFTA_LIST_ELEM) {
		key := attr(attr(e, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
		// User data is a list of type, length, value; the comment is of type 0.
		user, owner := attr(e, unix.NFTA_SET_ELEM_USERDATA), ""
		for len(user) >= 2 && len(user) >= 2+int(user[1]) {
			if user[0] == 0 {
				owner = strings.TrimRight(string(user[2:2+int(user[1])]), "\x00")
			}
			user = user[2+int(user[1]):]
		}
		all = append(all, mapped{key: bytes.Clone(key), owner: owner}) // data is the socket's buffer
	}
	return all
}

// attrs are the values of all attributes of a kind in data, attr is the first of them.
func attrs(data []byte, kind int) (values [][]byte) {
	for len(data) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(data))
		if size < unix.SizeofNlAttr || size > len(data) {
			return values
		}
		if int(binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER)) == kind {
			values = append(values, data[unix.SizeofNlAttr:size])
		}
		data = data[min(len(data), (size+3)&^3):]
	}
	return values
}

func attr(data []byte, kind int) []byte {
	if all := attrs(data, kind); len(all) > 0 {
		return all[0]
	}
	return nil
}
