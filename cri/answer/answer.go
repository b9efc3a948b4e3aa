// Package answer has what answers of the CRI share.
package answer

import (
	"encoding/json"
	"fmt"
)

// Verbose is the extra information clients print: one JSON document.
func Verbose(info map[string]any) (map[string]string, error) {
	b, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("encode information: %w", err)
	}
	return map[string]string{"info": string(b)}, nil
}

// HasLabels says whether all that is wanted is there.
func HasLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}
