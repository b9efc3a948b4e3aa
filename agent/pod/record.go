package pod

import (
	"encoding/json"
	"os"
)

// readRecord is false when there is none that can be read.
func readRecord(path string, v any) bool {
	data, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(data, v) == nil
}
