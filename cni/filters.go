package cni

import (
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"
)

// filters are those of bridges that this process has made.
type filters struct {
	log    *slog.Logger
	nft    *rtnlPool
	socket nftSocket
	guests func(bridge string) []guest // who is to be in a filter that is made again

	making sync.Mutex // held while a filter is made

	mu   sync.Mutex
	made map[string]bool // by bridge; false: not possible
	open map[string]bool // sandboxes that are not filtered, by ID
}

func newFilters(log *slog.Logger, nft *rtnlPool) *filters {
	return &filters{
		log: log, nft: nft, guests: func(string) []guest { return nil }, made: map[string]bool{},
		open: map[string]bool{},
	}
}

// admit has the filter let a pod speak for itself, and nobody else; at an open one it does not look.
func (fs *filters) admit(bridge string, g guest, open bool) error {
	fs.mu.Lock()
	if open {
		fs.open[g.id] = true
	}
	able, made := fs.made[bridge]
	fs.mu.Unlock()
	if made && (!able || open) {
		return nil
	}
	if made {
		if err := (filter{bridge}).admit(&fs.socket, g); !errors.Is(err, unix.ENOENT) {
			return err
		}
		// Somebody has flushed the ruleset.
	}
	if open {
		return fs.ensure(bridge)
	}
	return fs.ensure(bridge, g)
}

// ensure makes the filter of a bridge, with all pods that there are and those given. A kernel that cannot costs the
// filter, not the pods.
func (fs *filters) ensure(bridge string, more ...guest) error {
	fs.making.Lock()
	defer fs.making.Unlock()
	err := filter{bridge}.ensure(append(fs.guests(bridge), more...))
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if errors.Is(err, errNoFilter) {
		fs.log.Warn("pods are not kept from speaking for others", "bridge", bridge, "error", err)
		fs.made[bridge] = false
		return nil
	}
	if err == nil {
		fs.made[bridge] = true
	}
	return err
}

// restore makes the filter if it is missing, or has not been looked at by this process, which may be of a later
// version.
func (fs *filters) restore(bridge string) error {
	fs.mu.Lock()
	able, made := fs.made[bridge]
	fs.mu.Unlock()
	if made {
		ok, err := tableExists(fs.nft, filter{bridge}.table())
		if ok || !able || err != nil {
			return err
		}
		fs.log.Warn("the filter of the pods was removed by somebody and is made again", "bridge", bridge)
	}
	return fs.ensure(bridge)
}

// opened are the sandboxes that are not filtered.
func (fs *filters) opened() map[string]bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return maps.Clone(fs.open)
}

// dismiss takes a pod out of the filter, whose port carries nothing any more. Where its address is not known, what it
// has in the filter is found by its comment later.
func (fs *filters) dismiss(bridge, id string, address func() (netip.Addr, bool, error)) error {
	fs.mu.Lock()
	open := fs.open[id]
	able, made := fs.made[bridge]
	delete(fs.open, id)
	fs.mu.Unlock()
	if open || made && !able {
		return nil
	}
	addr, ok, err := address()
	if err != nil || !ok {
		return err
	}
	if err := (filter{bridge}).dismiss(&fs.socket, guest{id, addr}); !errors.Is(err, errNoFilter) {
		return err
	}
	return nil
}

// collect takes pods that are not live out of the filter.
func (fs *filters) collect(bridge string, live func(id string) bool) error {
	if ok, err := tableExists(fs.nft, filter{bridge}.table()); err != nil || !ok {
		return nil
	}
	return filter{bridge}.collect(fs.nft, live)
}

// purge removes the filter of a bridge.
func (fs *filters) purge(bridge string) error {
	fs.mu.Lock()
	delete(fs.made, bridge)
	fs.mu.Unlock()
	return removeTable(fs.nft, filter{bridge}.table())
}
