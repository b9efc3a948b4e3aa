package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// ipamConf is the "ipam" part of a configuration, for berth-ipam.
type ipamConf struct {
	Type    string       `json:"type"`
	Subnet  netip.Prefix `json:"subnet,omitzero"`
	DataDir string       `json:"dataDir,omitempty"`
}

func (c ipamConf) validate() error {
	if _, _, err := usable(c.Subnet); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "ipam: "+err.Error(), "")
	}
	if !filepath.IsAbs(c.DataDir) {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("ipam: dataDir %q is not an absolute path", c.DataDir), "")
	}
	return nil
}

// ipamPluginConf is the whole configuration as berth-ipam sees it.
type ipamPluginConf struct {
	CNIVersion string               `json:"cniVersion"`
	IPAM       ipamConf             `json:"ipam"`
	Live       []types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`
}

// pool opens the addresses that a configuration names, once.
func (b *builtin) pool(c ipamConf) (*pool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.pools[c.DataDir]; p != nil {
		if p.subnet != c.Subnet.Masked() {
			return nil, fmt.Errorf("open addresses in %s: they are of %s, not of %s", c.DataDir, p.subnet, c.Subnet)
		}
		return p, nil
	}
	p, err := openPool(c.DataDir, b.boot, c.Subnet)
	if err == nil {
		b.pools[c.DataDir] = p
	}
	return p, err
}

func (b *builtin) ipamPool(stdin []byte) (ipamPluginConf, *pool, error) {
	var c ipamPluginConf
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, nil, types.NewError(types.ErrDecodingFailure, "read configuration: "+err.Error(), "")
	}
	if err := c.IPAM.validate(); err != nil {
		return c, nil, err
	}
	p, err := b.pool(c.IPAM)
	return c, p, err
}

func (b *builtin) ipamAdd(_ context.Context, a *skel.CmdArgs) (types.Result, error) {
	c, p, err := b.ipamPool(a.StdinData)
	if err != nil {
		return nil, err
	}
	addr, err := p.add(owner(a.ContainerID, a.IfName))
	if err != nil {
		return nil, err
	}
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		IPs:        []*types100.IPConfig{{Address: *ipNet(netip.PrefixFrom(addr, p.subnet.Bits())), Gateway: p.gateway.AsSlice()}},
		Routes:     defaultRoute(p.gateway),
	}
	return result.GetAsVersion(c.CNIVersion)
}

func (b *builtin) ipamDel(_ context.Context, a *skel.CmdArgs) error {
	_, p, err := b.ipamPool(a.StdinData)
	if err != nil {
		return err
	}
	return p.release(owner(a.ContainerID, a.IfName))
}

func (b *builtin) ipamCheck(_ context.Context, a *skel.CmdArgs) error {
	_, p, err := b.ipamPool(a.StdinData)
	if err != nil {
		return err
	}
	if _, ok := p.find(owner(a.ContainerID, a.IfName)); !ok {
		return fmt.Errorf("check address: none is recorded for %s", a.ContainerID)
	}
	return nil
}

func (b *builtin) ipamGC(_ context.Context, a *skel.CmdArgs) error {
	c, p, err := b.ipamPool(a.StdinData)
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, l := range c.Live {
		live[l.ContainerID] = true
	}
	return p.collect(func(id string) bool { return live[id] })
}

func (b *builtin) ipamStatus(_ context.Context, a *skel.CmdArgs) error {
	_, _, err := b.ipamPool(a.StdinData)
	return err
}

func (b *builtin) closePool(dir string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pools[dir]
	if p == nil {
		return nil
	}
	delete(b.pools, dir)
	return p.close()
}
