package pressure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

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
