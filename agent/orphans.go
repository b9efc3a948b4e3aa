package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
)

// removeOrphans removes the groups of pods that nobody knows any more. It runs when all manifests have been read: a pod
// has its directory before its group, so a group without a directory, without a worker, is one that a crash has left.
func (a *Agent) removeOrphans(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-a.read:
	}
	known := map[types.UID]bool{}
	for _, p := range a.pods.List() {
		known[p.UID] = true
	}
	gone, err := a.tree.RemoveOrphans(ctx, func(uid types.UID) bool {
		if known[uid] || a.pods.Has(uid) {
			return true
		}
		_, err := os.Lstat(filepath.Join(a.cfg.RootDir, "pods", string(uid)))
		return !errors.Is(err, fs.ErrNotExist)
	})
	if err != nil {
		a.log.Warn("groups that are left of pods are not all removed", "error", err)
	}
	if len(gone) > 0 {
		a.log.Info("groups that were left of pods are removed", "groups", gone)
	}
}
