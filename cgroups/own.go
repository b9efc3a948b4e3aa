package cgroups

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// OwnMemoryLimit is the least limit of memory of the group that this process is in and of those above, in bytes;
// math.MaxInt64 where there is none, or none that can be read.
func OwnMemoryLimit() int64 {
	least := int64(math.MaxInt64)
	h, err := Open("")
	if err != nil {
		return least
	}
	group, err := h.FromPid(os.Getpid())
	if err != nil {
		return least
	}
	for ; ; group = path.Dir(group) {
		for _, name := range []string{"memory.limit_in_bytes", "memory.max"} {
			b, err := os.ReadFile(filepath.Join(h.Dir("memory", group), name))
			if err != nil {
				continue
			}
			n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
			// v1 says no limit with the greatest multiple of a page, v2 with a word.
			if err == nil && n < math.MaxInt64>>12<<12 {
				least = min(least, n)
			}
		}
		if group == "/" {
			return least
		}
	}
}
