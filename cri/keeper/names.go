package keeper

import (
	"fmt"
	"strings"
	"sync"

	"github.com/moby/sys/capability"
)

// capBits are the kernel's bits of capabilities by the names that specifications have, in capitals. The five sets of a
// container are looked up for each command in it, a probe's too.
var capBits = sync.OnceValue(func() map[string]uint64 {
	bits := map[string]uint64{}
	for _, c := range capability.ListKnown() {
		bits["CAP_"+strings.ToUpper(c.String())] = 1 << c
	}
	return bits
})

// capMask turns capability names into the kernel's bits.
func capMask(names []string) (uint64, error) {
	var m uint64
	bits := capBits()
	for _, n := range names {
		bit, ok := bits[n]
		if !ok {
			// Plugins may write them in their own way.
			bit, ok = bits["CAP_"+strings.TrimPrefix(strings.ToUpper(n), "CAP_")]
		}
		if !ok {
			return 0, fmt.Errorf("capability %q is not known", n)
		}
		m |= bit
	}
	return m, nil
}
