package pressure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// parseCounters reads lines of a name and a number. What is no such line is left out: newer kernels have other ones.
func parseCounters(text string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 64)
		if ok && err == nil && name != "" {
			out[name] = n
		}
	}
	return out
}

// parseBytes reads a number of bytes, or "max".
func parseBytes(text string) (int64, error) {
	text = strings.TrimSpace(text)
	if text == "max" {
		return math.MaxInt64, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("not a number of bytes: %.32q", text)
	}
	return n, nil
}
