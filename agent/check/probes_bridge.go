package check

import (
	"context"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// bridgeProbes are of what keeps pods of the network built in apart from each other.
func bridgeProbes() []probe {
	return []probe{{
		"nf_tables bridge", false,
		"A pod can use another's address, and speak as a router or a DHCP server (CONFIG_NF_TABLES_BRIDGE, module nf_tables_bridge).", probeBridgeFilter,
	}}
}

// probeBridgeFilter writes the kind of rules that the filter of the bridge has: a set that is looked up before the
// bridge learns.
func probeBridgeFilter(context.Context, *env) answer {
	err := inNet(func() error {
		c, err := nftables.New()
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		table := c.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: "berth-check"})
		ports := &nftables.Set{Table: table, Name: "ports", KeyType: nftables.TypeIFName}
		if err := c.AddSet(ports, nil); err != nil {
			return fmt.Errorf("add set: %w", err)
		}
		chain := c.AddChain(&nftables.Chain{
			Name: "pre", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Lookup{SourceRegister: 1, SetName: ports.Name, SetID: ports.ID},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		if err := c.Flush(); err != nil {
			return fmt.Errorf("add filter of bridges: %w", err)
		}
		return nil
	})
	return tried(err, "a filter of bridges in a throwaway namespace")
}
