package nodeipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func TestParseRanges(t *testing.T) {
	got, err := ParseRanges("10.244.0.0/16, fd00:1::/56", 0, 0)
	if err != nil || len(got) != 2 || got[0].Mask != 24 || got[1].Mask != 64 {
		t.Errorf("they are %v: %v", got, err)
	}
	for _, bad := range []string{"", "10.0.0.1", "10.0.0.0/25", "10.0.0.0/7", "10.0.0.0/16,10.1.0.0/16", "10.0.0.0/16,fd00::/64,fd01::/64", "fd00::/32"} {
		if got, err := ParseRanges(bad, 0, 0); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

// TestPool gives no part to two nodes, whatever comes and goes, and all that there are.
func TestPool(t *testing.T) {
	rs, err := ParseRanges("10.244.1.0/20", 24, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := newPool(rs[0], []netip.Prefix{netip.MustParsePrefix("10.244.3.128/25"), netip.MustParsePrefix("192.0.2.0/24")})
	p.hold("large", netip.MustParsePrefix("10.244.4.0/23"))
	p.hold("elsewhere", netip.MustParsePrefix("10.0.0.0/24"))
	r := rand.New(rand.NewPCG(1, 1))
	has := map[string]netip.Prefix{}
	for i := range 2000 {
		if len(has) > 0 && r.IntN(3) == 0 {
			for name, part := range has {
				p.free("another", part)
				p.free(name, part)
				delete(has, name)
				break
			}
			continue
		}
		name := fmt.Sprint("n", i)
		part, ok := p.take(name)
		if ok != (len(has) < 13) {
			t.Fatalf("with %d of 13 taken it gives %v: %v", len(has), part, ok)
		}
		if !ok {
			continue
		}
		for other, o := range has {
			if o.Overlaps(part) {
				t.Fatalf("%s and %s have %s", name, other, part)
			}
		}
		if s := part.String(); s == "10.244.3.0/24" || s == "10.244.4.0/24" || s == "10.244.5.0/24" || !rs[0].Prefix.Overlaps(part) {
			t.Fatalf("it gives %s", s)
		}
		has[name] = part
	}
	six, err := ParseRanges("fd00:0:0:ff00::/56", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	q := newPool(six[0], nil)
	for _, want := range []string{"fd00:0:0:ff00::/64", "fd00:0:0:ff01::/64"} {
		if got, ok := q.take("n"); !ok || got.String() != want {
			t.Errorf("it gives %s and not %s", got, want)
		}
	}
}
