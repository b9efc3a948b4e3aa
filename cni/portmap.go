package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// portMapConf is the configuration of berth-portmap. Bridge, subnet and ipMasq are those of the bridge, whose table the
// ports are in.
type portMapConf struct {
	CNIVersion string       `json:"cniVersion"`
	Bridge     string       `json:"bridge"`
	Subnet     netip.Prefix `json:"subnet"`
	IPMasq     bool         `json:"ipMasq"`
	Runtime    struct {
		Ports []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`

	Live []types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`
}

// portMapping is one entry of the capability portMappings, as CNI's conventions have it.
type portMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

func parsePortMapConf(data []byte) (portMapConf, error) {
	var c portMapConf
	if err := json.Unmarshal(data, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, "read configuration: "+err.Error(), "")
	}
	if err := validLink(c.Bridge); err != nil {
		return c, types.NewError(types.ErrInvalidNetworkConfig, "bridge: "+err.Error(), "")
	}
	if !c.Subnet.IsValid() || !c.Subnet.Addr().Is4() {
		return c, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("subnet: %s is not IPv4", c.Subnet), "")
	}
	return c, nil
}

func (c portMapConf) table() table {
	return table{bridge: c.Bridge, subnet: c.Subnet.Masked(), masq: c.IPMasq}
}

// ports reads the mappings for a pod with that address. Entries without a host port ask for nothing; those of an IPv6
// address of the node cannot be had by a pod without one.
func (c portMapConf) ports(pod netip.Addr) ([]port, error) {
	protos := map[string]byte{
		"": unix.IPPROTO_TCP, "tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP,
	}
	var ports []port
	for _, m := range c.Runtime.Ports {
		if m.HostPort == 0 {
			continue
		}
		name := strings.ToLower(m.Protocol)
		proto, ok := protos[name]
		if !ok || m.HostPort < 0 || m.HostPort > 65535 || m.ContainerPort <= 0 || m.ContainerPort > 65535 {
			return nil, types.NewError(types.ErrInvalidNetworkConfig,
				fmt.Sprintf("portMappings: %+v is not possible", m), "")
		}
		if name == "" {
			name = "tcp"
		}
		p := port{proto: proto, protoName: name, host: uint16(m.HostPort), podPort: uint16(m.ContainerPort), pod: pod}
		if m.HostIP != "" {
			a, err := netip.ParseAddr(m.HostIP)
			if err != nil {
				return nil, types.NewError(types.ErrInvalidNetworkConfig, "portMappings: hostIP: "+err.Error(), "")
			}
			if a = a.Unmap(); a.Is6() && !a.IsUnspecified() {
				continue
			}
			if !a.IsUnspecified() {
				p.addr = a
			}
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// portMapPlugin is berth-portmap.
type portMapPlugin struct {
	bridges *bridges
	tables  *tables
}

func (p *portMapPlugin) add(_ context.Context, a *skel.CmdArgs) (types.Result, error) {
	c, err := parsePortMapConf(a.StdinData)
	if err != nil {
		return nil, err
	}
	prev, err := previous(a.StdinData)
	if err != nil {
		return nil, err
	}
	var pod netip.Addr
	for _, ip := range prev.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP.To4()); ok && !pod.IsValid() {
			pod = addr
		}
	}
	ports, err := c.ports(pod)
	if err != nil {
		return nil, err
	}
	if len(ports) > 0 {
		if !pod.IsValid() {
			return nil, types.NewError(types.ErrInvalidNetworkConfig, "host ports need an IPv4 address of the pod", "")
		}
		if err := p.mapPorts(c.table(), a.ContainerID, ports); err != nil {
			return nil, err
		}
	}
	return prev.GetAsVersion(c.CNIVersion)
}

// mapPorts maps the host ports of a sandbox.
func (p *portMapPlugin) mapPorts(t table, id string, ports []port) error {
	if err := p.tables.ensure(t); err != nil {
		return err
	}
	err := t.addPorts(id, ports)
	if errors.Is(err, unix.ENOENT) {
		// Somebody has flushed the ruleset.
		if err = t.ensure(); err == nil {
			err = t.addPorts(id, ports)
		}
	}
	if err != nil {
		return err
	}
	if err := p.bridges.get(t.bridge).reachFromLoopback(); err != nil {
		return err
	}
	return forgetFlows(ports)
}

// forgetFlows drops what conntrack remembers of a UDP host port: a client that keeps sending from one port would be led
// to the old pod, or to none, for ever.
func forgetFlows(ports []port) error {
	for _, p := range ports {
		if p.proto != unix.IPPROTO_UDP {
			continue
		}
		f := &netlink.ConntrackFilter{}
		if err := errors.Join(f.AddProtocol(unix.IPPROTO_UDP),
			f.AddPort(netlink.ConntrackOrigDstPort, p.host)); err != nil {
			return fmt.Errorf("forget flows of host port %s: %w", p, err)
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f); err != nil &&
			!errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget flows of host port %s: %w", p, err)
		}
	}
	return nil
}

func (p *portMapPlugin) del(_ context.Context, a *skel.CmdArgs) error {
	c, err := parsePortMapConf(a.StdinData)
	if err != nil {
		return err
	}
	ports, err := c.ports(netip.IPv4Unspecified())
	if err == nil && len(ports) > 0 {
		err = c.table().removePorts(p.tables.nft, a.ContainerID, ports)
	} else {
		// Whoever calls does not know the ports.
		err = c.table().collectPorts(p.tables.nft, func(id string) bool { return id == a.ContainerID })
	}
	if errors.Is(err, errNoNFT) {
		return nil
	}
	return err
}

func (p *portMapPlugin) check(_ context.Context, a *skel.CmdArgs) error {
	_, err := parsePortMapConf(a.StdinData)
	return err
}

func (p *portMapPlugin) gc(_ context.Context, a *skel.CmdArgs) error {
	c, err := parsePortMapConf(a.StdinData)
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, l := range c.Live {
		live[l.ContainerID] = true
	}
	return c.table().collectPorts(p.tables.nft, func(id string) bool { return !live[id] })
}

func (p *portMapPlugin) status(_ context.Context, a *skel.CmdArgs) error {
	_, err := parsePortMapConf(a.StdinData)
	return err
}
