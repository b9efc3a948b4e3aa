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
		return types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("ipam: dataDir %q is not an absolute path", c.DataDir), "")
	}
	return nil
}

// ipamPluginConf is the whole configuration as berth-ipam sees it.
type ipamPluginConf struct {
	CNIVersion string               `json:"cniVersion"`
	IPAM       ipamConf             `json:"ipam"`
	Live       []types.GCAttachment `json:"cni.dev/valid-attachments,omitempty"`
}

// ipamPlugin is berth-ipam.
type ipamPlugin struct{ pools *pools }

func (i ipamPlugin) pool(stdin []byte) (ipamPluginConf, *pool, error) {
	var c ipamPluginConf
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, nil, types.NewError(types.ErrDecodingFailure, "read configuration: "+err.Error(), "")
	}
	if err := c.IPAM.validate(); err != nil {
		return c, nil, err
	}
	p, err := i.pools.open(c.IPAM)
	return c, p, err
}

func (i ipamPlugin) add(_ context.Context, a *skel.CmdArgs) (types.Result, error) {
	c, p, err := i.pool(a.StdinData)
	if err != nil {
		return nil, err
	}
	addr, err := p.add(owner(a.ContainerID, a.IfName))
	if err != nil {
		return nil, err
	}
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		IPs: []*types100.IPConfig{{
			Address: *ipNet(netip.PrefixFrom(addr, p.subnet.Bits())),
			Gateway: p.gateway.AsSlice(),
		}},
		Routes: defaultRoute(p.gateway),
	}
	return result.GetAsVersion(c.CNIVersion)
}

func (i ipamPlugin) del(_ context.Context, a *skel.CmdArgs) error {
	_, p, err := i.pool(a.StdinData)
	if err != nil {
		return err
	}
	return p.release(owner(a.ContainerID, a.IfName))
}

func (i ipamPlugin) check(_ context.Context, a *skel.CmdArgs) error {
	_, p, err := i.pool(a.StdinData)
	if err != nil {
		return err
	}
	if _, ok := p.find(owner(a.ContainerID, a.IfName)); !ok {
		return fmt.Errorf("check address: none is recorded for %s", a.ContainerID)
	}
	return nil
}

func (i ipamPlugin) gc(_ context.Context, a *skel.CmdArgs) error {
	c, p, err := i.pool(a.StdinData)
	if err != nil {
		return err
	}
	live := map[string]bool{}
	for _, l := range c.Live {
		live[l.ContainerID] = true
	}
	return p.collect(func(id string) bool { return live[id] })
}

func (i ipamPlugin) status(_ context.Context, a *skel.CmdArgs) error {
	_, _, err := i.pool(a.StdinData)
	return err
}
