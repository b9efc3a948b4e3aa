package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-node/berth/agent/record"
)

// runtimesFile has the sockets of the runtimes that agents have used beside the embedded one, a line each, in the root directory.
const runtimesFile = "runtimes"

// Runtimes are the sockets of the runtimes that agents on a root directory have used beside the embedded one.
func Runtimes(rootDir string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(rootDir, runtimesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read which runtimes were used: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// recordRuntime is called before the runtime has a pod. A runtime stays in the record when another one takes its place, since it may
// have pods still.
func recordRuntime(rootDir, endpoint string) error {
	if endpoint == "" {
		return nil
	}
	endpoint = "unix://" + strings.TrimPrefix(endpoint, "unix://")
	used, err := Runtimes(rootDir)
	if err != nil || slices.Contains(used, endpoint) {
		return err
	}
	path := filepath.Join(rootDir, runtimesFile)
	if err = os.MkdirAll(rootDir, 0o711); err == nil {
		err = record.Replace(path, []byte(strings.Join(append(used, endpoint), "\n")+"\n"))
	}
	if err != nil {
		return fmt.Errorf("record which runtime is used: %w", err)
	}
	return nil
}
