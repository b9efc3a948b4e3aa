package cni

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// pool hands out the addresses of one network. Each address in use is a symbolic link, <dir>/<boot ID>/<address>, that
// points to its owner: symlink(2) makes name and content in one step and fails when the name is there, so no crash
// leaves half a record and no two processes get one address. Nothing is synced, since the records of another boot mean
// nothing: the directory of another boot ID is removed.
type pool struct {
	dir           string // with the boot ID
	subnet        netip.Prefix
	gateway, last netip.Addr

	mu     sync.Mutex
	owners map[string]netip.Addr
	cursor *os.File // text of the address handed out last, so that a freed one is used again as late as possible
}

// lastName is the name of the cursor's file.
const lastName = "last"

// owner is what a link points to. Neither half has a colon in it.
func owner(id, ifName string) string { return id + ":" + ifName }

// parseOwner is the opposite of owner.
func parseOwner(s string) (id, ifName string, ok bool) {
	id, ifName, ok = strings.Cut(s, ":")
	return id, ifName, ok && id != "" && ifName != "" && !strings.Contains(ifName, ":")
}

// usable checks a subnet and returns its gateway, the first address, and the last one that may be handed out.
func usable(subnet netip.Prefix) (gateway, last netip.Addr, err error) {
	if !subnet.IsValid() || !subnet.Addr().Is4() {
		return gateway, last, fmt.Errorf("subnet %s: not IPv4", subnet)
	}
	if subnet.Bits() > 30 {
		return gateway, last, fmt.Errorf("subnet %s: too small for a gateway and a pod", subnet)
	}
	gateway = subnet.Masked().Addr().Next()
	a := subnet.Masked().Addr().As4()
	for i := subnet.Bits(); i < 32; i++ {
		a[i/8] |= 0x80 >> (i % 8)
	}
	return gateway, netip.AddrFrom4(a).Prev(), nil // without the broadcast address
}

// pools are the addresses of all networks, by directory.
type pools struct {
	boot string

	mu sync.Mutex
	of map[string]*pool
}

// open opens the addresses that a configuration names, once.
func (ps *pools) open(c ipamConf) (*pool, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.of[c.DataDir]; p != nil {
		if p.subnet != c.Subnet.Masked() {
			return nil, fmt.Errorf("open addresses in %s: they are of %s, not of %s", c.DataDir, p.subnet, c.Subnet)
		}
		return p, nil
	}
	p, err := openPool(c.DataDir, ps.boot, c.Subnet)
	if err == nil {
		ps.of[c.DataDir] = p
	}
	return p, err
}

// forget closes the addresses of a directory.
func (ps *pools) forget(dir string) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.of[dir]
	if p == nil {
		return nil
	}
	delete(ps.of, dir)
	return p.close()
}

func (ps *pools) close() error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	var errs []error
	for _, p := range ps.of {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

func openPool(dir, boot string, subnet netip.Prefix) (*pool, error) {
	p := &pool{dir: filepath.Join(dir, boot), subnet: subnet.Masked(), owners: map[string]netip.Addr{}}
	var err error
	if p.gateway, p.last, err = usable(subnet); err != nil {
		return nil, fmt.Errorf("open addresses: %w", err)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, fmt.Errorf("open addresses: %w", err)
	}
	if err := dropBoots(dir, boot); err != nil {
		return nil, fmt.Errorf("drop addresses of an earlier boot: %w", err)
	}
	if err := p.load(); err != nil {
		return nil, err
	}
	if p.cursor, err = os.OpenFile(filepath.Join(p.dir, lastName), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("open addresses: %w", err)
	}
	return p, nil
}

// dropBoots removes the records of all boots but one, and nothing else: a configuration may name a directory that
// others have files in.
func dropBoots(dir, boot string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == boot || !isBootID(e.Name()) {
			continue
		}
		old := filepath.Join(dir, e.Name())
		records, err := os.ReadDir(old)
		if err != nil {
			return err
		}
		foreign := false
		for _, r := range records {
			if _, err := netip.ParseAddr(r.Name()); err != nil && r.Name() != lastName {
				foreign = true
				continue
			}
			if err := os.Remove(filepath.Join(old, r.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err := os.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) && !foreign {
			return err
		}
	}
	return nil
}

// isBootID says whether a name is of the form of the kernel's boot IDs, which is that of UUIDs.
func isBootID(name string) bool {
	parts := strings.Split(name, "-")
	for i, p := range parts {
		if i >= 5 || len(p) != [...]int{8, 4, 4, 4, 12}[i] || strings.Trim(p, "0123456789abcdef") != "" {
			return false
		}
	}
	return len(parts) == 5
}

func (p *pool) close() error { return p.cursor.Close() }

// load reads the records from the directory.
func (p *pool) load() error {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return fmt.Errorf("list addresses: %w", err)
	}
	clear(p.owners)
	for _, e := range entries {
		a, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue
		}
		if who, err := os.Readlink(p.path(a)); err == nil {
			p.owners[who] = a
		}
	}
	return nil
}

func (p *pool) path(a netip.Addr) string { return filepath.Join(p.dir, a.String()) }

// add records a free address for who and returns it; one that who has already is returned again.
func (p *pool) add(who string) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.owners[who]; ok {
		return a, nil
	}
	start := p.position()
	a := start
	for {
		if a = a.Next(); a.Compare(p.last) > 0 {
			a = p.gateway.Next()
		}
		err := os.Symlink(who, p.path(a))
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrExist) {
			return a, fmt.Errorf("record address %s: %w", a, err)
		}
		if a == start {
			return a, fmt.Errorf("find a free address: all of %s are in use (%d pods)", p.subnet, len(p.owners))
		}
	}
	p.owners[who] = a
	_, err := p.cursor.WriteAt([]byte(fmt.Sprintf("%-15s\n", a)), 0)
	if err != nil {
		return a, fmt.Errorf("record address %s: %w", a, err)
	}
	return a, nil
}

// position is the address handed out last, or one that leads to the first.
func (p *pool) position() netip.Addr {
	var text [16]byte
	n, _ := p.cursor.ReadAt(text[:], 0)
	a, err := netip.ParseAddr(string(bytes.TrimSpace(text[:n])))
	if err != nil || a.Compare(p.gateway) <= 0 || a.Compare(p.last) > 0 {
		return p.last
	}
	return a
}

// find returns the address of who.
func (p *pool) find(who string) (netip.Addr, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.owners[who]
	return a, ok
}

// all are the addresses, by who has them.
func (p *pool) all() map[string]netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.owners)
}

// release frees the address of who, if it has one.
func (p *pool) release(who string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	a, ok := p.owners[who]
	if !ok {
		// Another process, the same plugin executed, may have recorded it.
		if err := p.load(); err != nil {
			return err
		}
		if a, ok = p.owners[who]; !ok {
			return nil
		}
	}
	if err := os.Remove(p.path(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("free address %s: %w", a, err)
	}
	delete(p.owners, who)
	return nil
}

// collect frees the addresses of sandboxes that are not live, and records that are not ours.
func (p *pool) collect(live func(id string) bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.load(); err != nil {
		return err
	}
	var errs []error
	for who, a := range p.owners {
		if id, _, ok := parseOwner(who); ok && live(id) {
			continue
		}
		if err := os.Remove(p.path(a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("free address %s: %w", a, err))
			continue
		}
		delete(p.owners, who)
	}
	return errors.Join(errs...)
}
