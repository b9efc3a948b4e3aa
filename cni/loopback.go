package cni

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
)

// The loopback plugin is for other runtimes: our own namespaces are born with lo up.

func loopbackAdd(_ context.Context, a *skel.CmdArgs) (types.Result, error) {
	var c struct {
		CNIVersion string          `json:"cniVersion"`
		Prev       json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(a.StdinData, &c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "read configuration: "+err.Error(), "")
	}
	ns, err := os.Open(a.Netns)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	if err := inNetNS(ns, loopbackUp); err != nil {
		return nil, err
	}
	if len(c.Prev) > 0 && string(c.Prev) != "null" {
		prev, err := previous(a.StdinData)
		if err != nil {
			return nil, err
		}
		return prev.GetAsVersion(c.CNIVersion)
	}
	lo := 0
	result := &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion,
		Interfaces: []*types100.Interface{{Name: "lo", Mac: "00:00:00:00:00:00", Sandbox: a.Netns}},
		IPs: []*types100.IPConfig{{
			Interface: &lo,
			Address:   net.IPNet{IP: net.IPv4(127, 0, 0, 1).To4(), Mask: net.CIDRMask(8, 32)},
		}},
	}
	return result.GetAsVersion(c.CNIVersion)
}

func loopbackCheck(_ context.Context, a *skel.CmdArgs) error {
	ns, err := os.Open(a.Netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	return inNetNS(ns, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("check lo: %w", err)
		}
		if lo.Attrs().Flags&net.FlagUp == 0 {
			return fmt.Errorf("check lo: it is down")
		}
		return nil
	})
}
