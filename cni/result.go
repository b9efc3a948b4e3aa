package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// convert reads a result of any version of the specification.
func convert(raw types.Result) (Result, error) {
	r, err := current(raw)
	if err != nil {
		return Result{}, err
	}
	var out Result
	at := map[int]int{} // interfaces of the result that are the pod's
	for i, in := range r.Interfaces {
		if in.Sandbox == "" || in.Name == "lo" {
			continue
		}
		mac, _ := net.ParseMAC(in.Mac) // it need not have one
		at[i] = len(out.Interfaces)
		out.Interfaces = append(out.Interfaces, Interface{Name: in.Name, MAC: mac, MTU: in.Mtu})
	}
	for _, ip := range r.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			continue
		}
		ones, _ := ip.Address.Mask.Size()
		addr = addr.Unmap()
		out.IPs = append(out.IPs, addr)
		if ip.Interface == nil {
			continue
		}
		if i, ok := at[*ip.Interface]; ok {
			out.Interfaces[i].IPs = append(out.Interfaces[i].IPs, netip.PrefixFrom(addr, ones))
		}
	}
	if len(out.IPs) == 0 {
		return Result{}, errors.New("read result: the network gave no address")
	}
	if len(out.Interfaces) > 0 {
		out.MAC = out.Interfaces[0].MAC
	}
	return out, nil
}

// previous reads the result of the plugins before, or of ADD.
func previous(stdin []byte) (*types100.Result, error) {
	var c struct {
		CNIVersion string          `json:"cniVersion"`
		Prev       json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(stdin, &c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "read configuration: "+err.Error(), "")
	}
	if len(c.Prev) == 0 || string(c.Prev) == "null" {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "prevResult is missing", "")
	}
	raw, err := create.Create(c.CNIVersion, c.Prev)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "read prevResult: "+err.Error(), "")
	}
	return current(raw)
}

// current converts a result to the version we work with, without the nulls that JSON allows in its lists.
func current(raw types.Result) (*types100.Result, error) {
	r, err := types100.NewResultFromResult(raw)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	r.Interfaces = slices.DeleteFunc(r.Interfaces, func(i *types100.Interface) bool { return i == nil })
	r.IPs = slices.DeleteFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip == nil })
	r.Routes = slices.DeleteFunc(r.Routes, func(r *types.Route) bool { return r == nil })
	return r, nil
}

// ipFromResult takes the first IPv4 address out of the result of a foreign IPAM plugin.
func ipFromResult(raw types.Result) (podIP, error) {
	r, err := current(raw)
	if err != nil {
		return podIP{}, err
	}
	for _, ip := range r.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP.To4())
		ones, bits := ip.Address.Mask.Size()
		if !ok || bits != 32 || ones == 0 {
			continue
		}
		p := podIP{addr: netip.PrefixFrom(addr, ones), routes: r.Routes, dns: r.DNS}
		if p.gateway, ok = netip.AddrFromSlice(ip.Gateway.To4()); !ok {
			p.gateway = p.addr.Masked().Addr().Next()
		}
		if len(p.routes) == 0 {
			p.routes = defaultRoute(p.gateway)
		}
		return p, nil
	}
	return podIP{}, errors.New("read addresses: the IPAM plugin gave no IPv4 address")
}
