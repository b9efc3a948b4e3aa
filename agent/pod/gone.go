package pod

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/agent/pod/environment"
)

// Gone is a directory of a pod that nobody knows any more.
type Gone struct {
	UID  types.UID
	Path string
	Logs bool
}

// gone finds the directories of pods that have no worker: below the root directory, and those with logs that are marked
// as this agent's. It knows nothing before all manifests have been read.
func (n *node) gone(ctx context.Context) ([]Gone, error) {
	if !n.registry.synced.Load() {
		return nil, nil
	}
	var out []Gone
	pods := filepath.Join(n.cfg.RootDir, "pods")
	err := eachEntry(ctx, pods, func(name string) {
		out = n.addGone(out, Gone{UID: types.UID(name), Path: filepath.Join(pods, name)})
	})
	logsErr := eachEntry(ctx, n.cfg.LogDir, func(name string) {
		uid := types.UID(name[strings.LastIndexByte(name, '_')+1:])
		g := Gone{UID: uid, Path: filepath.Join(n.cfg.LogDir, name), Logs: true}
		if strings.Count(name, "_") == 2 && environment.OwnsLogs(n.cfg.RootDir, g.Path) {
			out = n.addGone(out, g)
		}
	})
	if err = errors.Join(err, logsErr); err != nil {
		return nil, fmt.Errorf("look for directories of pods that are gone: %w", err)
	}
	return out, nil
}

// addGone adds a directory if it is nobody's. A worker is there for longer than its directories, so that one which is
// there still, after no worker was, has none; who comes for it now is the manager's to know.
func (n *node) addGone(list []Gone, g Gone) []Gone {
	// Logs are found by a pattern with the UID. No pod has one with signs of patterns, and who has made such a name may
	// have others' logs in mind.
	if g.UID == "" || strings.ContainsAny(string(g.UID), `*?[\`) || n.registry.has(g.UID) {
		return list
	}
	if fi, err := os.Lstat(g.Path); err != nil || !fi.IsDir() {
		return list
	}
	return append(list, g)
}

// entriesAtOnce bounds the memory that a directory with very many entries takes.
const entriesAtOnce = 256

// eachEntry calls fn with the name of each entry of a directory; there may be none.
func eachEntry(ctx context.Context, dir string, fn func(name string)) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	for ctx.Err() == nil {
		names, err := d.Readdirnames(entriesAtOnce)
		for _, name := range names {
			fn(name)
		}
		if len(names) == 0 || err != nil {
			return nil // at the end, or it has gone meanwhile
		}
	}
	return ctx.Err()
}
