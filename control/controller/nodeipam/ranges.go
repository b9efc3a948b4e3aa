package nodeipam

import (
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strings"
)

const (
	// The sizes of nodes' ranges, as Kubernetes has them.
	defaultV4, defaultV6 = 24, 64
	// maxBits bounds how many nodes a range is divided for: what is used is kept in memory.
	maxBits = 16
)

// Range is a range of the cluster's, and how large each node's part of it is.
type Range struct {
	Prefix netip.Prefix
	Mask   int
}

// ParseRanges reads the ranges of a cluster, one of each family at most. Sizes of zero are those of Kubernetes.
func ParseRanges(text string, maskV4, maskV6 int) ([]Range, error) {
	var all []Range
	for one := range strings.SplitSeq(text, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(one))
		if err != nil {
			return nil, fmt.Errorf("read --cluster-cidr %q: it is a range as 10.244.0.0/16: %w", one, err)
		}
		mask := maskV4
		if p.Addr().Is6() {
			mask = maskV6
		}
		switch {
		case mask == 0 && p.Addr().Is4():
			mask = defaultV4
		case mask == 0:
			mask = defaultV6
		}
		if mask < p.Bits() || mask > p.Addr().BitLen() || mask-p.Bits() > maxBits {
			return nil, fmt.Errorf("read --cluster-cidr %q: parts of /%d are no parts of it, or more than %d", one, mask, 1<<maxBits)
		}
		all = append(all, Range{p.Masked(), mask})
	}
	if len(all) > 2 || len(all) == 2 && all[0].Prefix.Addr().Is4() == all[1].Prefix.Addr().Is4() {
		return nil, fmt.Errorf("read --cluster-cidr %q: there is one range, or one of IPv4 and one of IPv6", text)
	}
	return all, nil
}

// pool is the parts of a range, and who has which.
type pool struct {
	Range
	used map[netip.Prefix]string
	// others are ranges that nobody may be given any of: of services, and of nodes that somebody gave another size.
	others map[netip.Prefix]string
	next   int
}

func newPool(r Range, apart []netip.Prefix) *pool {
	p := &pool{Range: r, used: map[netip.Prefix]string{}, others: map[netip.Prefix]string{}}
	for _, o := range apart {
		if o.Overlaps(r.Prefix) {
			p.others[o] = ""
		}
	}
	return p
}

// hold notes what a node has.
func (p *pool) hold(node string, part netip.Prefix) {
	switch part = part.Masked(); {
	case !part.Overlaps(p.Prefix):
	case part.Bits() == p.Mask:
		p.used[part] = node
	default:
		p.others[part] = node
	}
}

// free gives back what a node has.
func (p *pool) free(node string, part netip.Prefix) {
	part = part.Masked()
	if p.used[part] == node {
		delete(p.used, part)
	}
	if owner, ok := p.others[part]; ok && owner == node && node != "" {
		delete(p.others, part)
	}
}

// take takes the next part that is free. Those that were given back come last: what their node had may still be known.
func (p *pool) take(node string) (netip.Prefix, bool) {
	count := 1 << (p.Mask - p.Prefix.Bits())
	for i := range count {
		n := (p.next + i) % count
		part := p.part(n)
		if _, taken := p.used[part]; taken || p.apart(part) {
			continue
		}
		p.used[part] = node
		p.next = (n + 1) % count
		return part, true
	}
	return netip.Prefix{}, false
}

func (p *pool) apart(part netip.Prefix) bool {
	for o := range p.others {
		if o.Overlaps(part) {
			return true
		}
	}
	return false
}

// part is one by its number.
func (p *pool) part(n int) netip.Prefix {
	bits := p.Prefix.Addr().BitLen()
	sum := new(big.Int).Lsh(big.NewInt(int64(n)), uint(bits-p.Mask))
	sum.Add(sum, new(big.Int).SetBytes(p.Prefix.Addr().AsSlice()))
	a, _ := netip.AddrFromSlice(sum.FillBytes(make([]byte, bits/8)))
	return netip.PrefixFrom(a, p.Mask)
}

// prefixes are the ranges in texts; what is none is nobody's.
func prefixes(texts []string) []netip.Prefix {
	var all []netip.Prefix
	for _, t := range texts {
		if p, err := netip.ParsePrefix(t); err == nil {
			all = append(all, p)
		}
	}
	return slices.Clip(all)
}
