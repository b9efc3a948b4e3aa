package cni

import (
	"errors"
	"log/slog"
	"maps"
	"sync"
)

// tables are the nftables tables of bridges that this process has made.
type tables struct {
	log *slog.Logger
	nft *rtnlPool

	mu   sync.Mutex
	made map[table]bool // false: not possible
}

// ensure makes the nftables table of a bridge, once a process. A kernel without nf_tables costs the node's pods the way
// out, not their start.
func (ts *tables) ensure(t table) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if _, ok := ts.made[t]; ok {
		return nil
	}
	err := t.ensure()
	if errors.Is(err, errNoNFT) {
		ts.log.Warn("pods cannot leave the node", "bridge", t.bridge, "error", err)
	} else if err != nil {
		return err
	}
	ts.made[t] = err == nil
	return nil
}

// ensured says that the table was made by this process.
func (ts *tables) ensured(t table) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.made[t]
}

// forget has the tables of a bridge be made again.
func (ts *tables) forget(bridge string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	maps.DeleteFunc(ts.made, func(t table, _ bool) bool { return t.bridge == bridge })
}

// collect unmaps the host ports of sandboxes that are not live.
func (ts *tables) collect(bridge string, live func(id string) bool) error {
	t := table{bridge: bridge}
	if ok, err := t.exists(ts.nft); err != nil || !ok {
		return nil
	}
	return t.collectPorts(ts.nft, func(id string) bool { return !live(id) })
}

// purge removes the table of a bridge.
func (ts *tables) purge(bridge string) error {
	ts.forget(bridge)
	return removeTable(ts.nft, table{bridge: bridge}.table())
}
