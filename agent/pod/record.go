package pod

import (
	"encoding/json"
	"os"
)

// writeRecord replaces a file of the pod's directory with v in one step. It fails with [os.ErrNotExist] when the pod has no directory:
// nothing is there to keep a record of.
func writeRecord(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readRecord is false when there is none that can be read.
func readRecord(path string, v any) bool {
	data, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(data, v) == nil
}
