package kind

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Root is the agent's root directory: the pods' directories are in it. It must exist when the first pod comes.
type Root string

// errUID says that a UID would lead elsewhere when it became part of a path.
var errUID = errors.New("pod UID is no name of a directory")

// Dir is where everything of a pod is.
func (r Root) Dir(uid types.UID) (string, error) {
	name := string(uid)
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
		return "", fmt.Errorf("%w: %q", errUID, name)
	}
	// The kernel's list of mounts has no links in its paths, so ours have none either.
	root, err := filepath.EvalSymlinks(string(r))
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "pods", name), nil
}

// Pods returns the pods that have a directory.
func (r Root) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(string(r), "pods"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list pods' directories: %w", err)
	}
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out, nil
}

// Each calls fn with the directory of every pod that has one, until it fails.
func (r Root) Each(fn func(dir string) error) error {
	pods, err := r.Pods()
	if err != nil {
		return err
	}
	for _, uid := range pods {
		dir, err := r.Dir(uid)
		if err != nil {
			return err
		}
		if err := fn(dir); err != nil {
			return err
		}
	}
	return nil
}
