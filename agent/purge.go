package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/api/socket"
	"github.com/berth-node/berth/agent/config"
	"github.com/berth-node/berth/agent/kills"
	"github.com/berth-node/berth/agent/pod/environment"
	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/source"
	"github.com/berth-node/berth/agent/volume"
	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/systemd"
)

// Purge removes what agents of this place have made beside what the runtime has: groups of pods, volumes, and the files
// that were kept. The runtime is purged first, so that no container uses any of it. It can be run again after it
// failed.
func Purge(ctx context.Context, p config.Place, l config.LocalCSI, log *slog.Logger) (err error) {
	drivers, end, err := csiToPurge(ctx, p, l, log)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, end()); err == nil {
			err = leaveLocal(ctx, p, log)
		}
	}()
	of := volume.Config{Root: p.RootDir, Log: log}
	if drivers != nil {
		of.CSI = drivers.kind()
	}
	volumes := volume.New(of)
	h, driver, err := openDriver(p)
	if err != nil {
		return err
	}
	tree := kube.NewTree(h, p.CgroupRoot).WithDriver(driver)
	errs := []error{purgeGroups(ctx, h, tree, p.CgroupRoot)}
	uids, err := volumes.Pods()
	errs = append(errs, err)
	for _, uid := range uids {
		// The directory goes last: it is the record of the logs of a pod that was killed before it had a sandbox.
		err := environment.RemoveLogs(ctx, p.LogDir, uid)
		if err == nil {
			err = volumes.Teardown(ctx, uid)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, purgeClaims(ctx, p, log))...); err != nil {
		return err
	}
	if err := removeCSI(ctx, p, drivers); err != nil {
		return err
	}
	_ = end() // what listens to plugins would make their directory again; how it ended is said above
	gone, empty := leftBehind(p, log)
	for _, d := range gone {
		errs = append(errs, filetree.RemoveAll(ctx, d))
	}
	// Only empty directories are removed here: what else is in them is not known, and may be anybody's.
	for _, d := range empty {
		errs = append(errs, rmdir(d))
	}
	return errors.Join(errs...)
}

// leftBehind is what an agent has made beside what pods have: files and directories that go, and directories that go
// when they are empty.
func leftBehind(p config.Place, log *slog.Logger) (gone, empty []string) {
	gone = below(p.RootDir, config.CertDir, keptDir, checkpointDir, pulledDir, runtimesFile, runtimesFile+".new",
		eventsFile, eventsFile+".new")
	gone = append(gone, below(p.RunDir, socket.Name, socket.Part, kube.LayoutFile, kube.LayoutFile+".new")...)
	gone = append(gone, deviceFiles(p)...)
	gone = append(gone, keptManifests(p)...)
	gone = append(gone, leaveProvisioned(p, log))
	for _, suffix := range []string{"", ".new", ".bad"} {
		gone = append(gone, below(p.RootDir, pinsFile+suffix, reservedFile+suffix, kills.File+suffix)...)
		gone = append(gone, below(p.RootDir, evictionsFile+suffix, conditionsFile+suffix)...)
	}
	empty = append(deviceDirs(p), config.KeptManifests(p.RootDir), filepath.Join(p.RootDir, "pods"), p.RootDir, p.LogDir)
	if p.RunDir == config.DefaultRunDir { // agents beside the machine's own leave its settings alone
		gone = append(gone, below(systemd.LoginConfDir, systemd.DelayConf, systemd.DelayConf+".new")...)
		empty = append(empty, systemd.LoginConfDir)
	}
	return gone, empty
}

// keptManifests are the last good manifests.
func keptManifests(p config.Place) (files []string) {
	dir := config.KeptManifests(p.RootDir)
	entries, _ := os.ReadDir(dir) // what cannot be read is not empty, and is told of then
	for _, e := range entries {
		if source.Kept(e.Name()) {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files
}

func below(dir string, names ...string) []string {
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// PurgePods ends the pods that agents of this place have on a runtime, without grace, and removes their logs. Images
// stay, and pods of others go on. It can be run again after it failed.
func PurgePods(ctx context.Context, r environment.Runtime, p config.Place) error {
	list, err := r.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list sandboxes: %w", err)
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, s := range list.GetItems() {
		if s.GetAnnotations()[spec.OwnerAnnotation] != p.RootDir {
			continue
		}
		g.Go(func() error {
			remover, uid := environment.Remover{Runtime: r, Killer: killerAt{p}}, types.UID(s.GetMetadata().GetUid())
			if err := remover.StopSandbox(ctx, uid, s.GetId()); err != nil {
				return fmt.Errorf("stop sandbox %s: %w", s.GetId(), err)
			}
			if err := remover.RemoveSandbox(ctx, uid, s.GetId()); err != nil {
				return fmt.Errorf("remove sandbox %s: %w", s.GetId(), err)
			}
			return filetree.RemoveAll(ctx, spec.LogDirectory(p.LogDir, spec.Restore(s, nil)))
		})
	}
	return g.Wait()
}

// killerAt kills in the groups of a place's pods, which are looked for only then.
type killerAt struct{ place config.Place }

// KillIn implements [environment.Killer].
func (k killerAt) KillIn(ctx context.Context, uid types.UID, ids []string) error {
	h, driver, err := openDriver(k.place)
	if err != nil {
		return err
	}
	return kube.NewTree(h, k.place.CgroupRoot).WithDriver(driver).KillIn(ctx, uid, ids)
}

func purgeGroups(ctx context.Context, h *cgroups.Hierarchy, tree *kube.Tree, root string) error {
	lock, err := lockGroups(h, tree, root)
	if errors.Is(err, fs.ErrNotExist) {
		return purgeRoot(ctx, h, tree, root)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	_, err = tree.RemoveOrphans(ctx, func(types.UID) bool { return false })
	return errors.Join(err, tree.Remove(ctx), purgeRoot(ctx, h, tree, root))
}

// purgeRoot removes the root if nothing is in it: it may be somebody else's group as well.
func purgeRoot(ctx context.Context, h *cgroups.Hierarchy, tree *kube.Tree, root string) error {
	if root == "/" {
		return nil
	}
	path, unit := tree.Root()
	if unit {
		children, err := h.Children(path)
		if err != nil || len(children) > 0 || path == "/" {
			return err
		}
		return kube.RemoveRoot(ctx, tree)
	}
	var errs []error
	for _, d := range h.Dirs(path) {
		errs = append(errs, rmdir(d))
	}
	return errors.Join(errs...)
}

// rmdir removes a directory if it is there and empty.
func rmdir(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return fmt.Errorf("remove %s: %w", dir, err)
}
