package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/agent/record"
)

// runtimesFile has the sockets of the runtimes that agents have used beside the embedded one, a line each, in the root
// directory.
const runtimesFile = "runtimes"

// Runtimes are the sockets of the runtimes that agents on a root directory have used beside the embedded one.
func Runtimes(rootDir string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(rootDir, runtimesFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read which runtimes were used: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// recordRuntime is called before the runtime has a pod. A runtime stays in the record when another one takes its place,
// since it may have pods still.
func recordRuntime(rootDir, endpoint string) error {
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

// recordedRuntime gets no pod before it is recorded that it is used: nobody would find the pod there.
type recordedRuntime struct {
	pod.Runtime
	record func() error

	mu       sync.Mutex
	recorded bool
}

// RunPodSandbox implements [pod.Runtime].
func (r *recordedRuntime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	if err := r.ensure(); err != nil {
		return nil, err
	}
	return r.Runtime.RunPodSandbox(ctx, req)
}

func (r *recordedRuntime) ensure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.recorded {
		return nil
	}
	err := r.record()
	r.recorded = err == nil
	return err
}
