package keeper

import (
	"fmt"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
)

// capMask turns capability names into the kernel's bits.
func capMask(names []string) (uint64, error) {
	var m uint64
	known := capability.ListKnown()
	for _, n := range names {
		i := slices.IndexFunc(known, func(c capability.Cap) bool {
			return c.String() == strings.TrimPrefix(strings.ToLower(n), "cap_")
		})
		if i < 0 {
			return 0, fmt.Errorf("capability %q is not known", n)
		}
		m |= 1 << known[i]
	}
	return m, nil
}
