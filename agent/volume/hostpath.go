package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/mount"
	"github.com/berth-node/berth/internal/patience"
	"github.com/berth-node/berth/internal/quantity"
)

// hostPathMode is that of what a pod has made on the host, which stays when the pod goes.
const (
	hostDirMode  = 0o755
	hostFileMode = 0o644
)

// hostPaths are directories and other files of the node, as they are.
type hostPaths struct {
	own   ownDirs
	calls *patience.Calls
}

// Traits says that there is nothing of such a volume in the pod's directory.
func (hostPaths) Traits() kind.Traits { return kind.Traits{Plugin: "host-path"} }

func hostPathOf(s kind.Source) *corev1.HostPathVolumeSource {
	if s.Bound != nil {
		return s.Bound.Spec.HostPath
	}
	return s.Pod.HostPath
}

// Makes says whether the source is a path of the node.
func (hostPaths) Makes(s kind.Source) bool { return hostPathOf(s) != nil }

// Setup holds the path to its type, and makes what is to be made.
func (k hostPaths) Setup(ctx context.Context, v *kind.Volume) (kind.Made, error) {
	h := hostPathOf(v.Source)
	ctx, cancel := context.WithTimeout(ctx, answers)
	defer cancel()
	return kind.Made{Path: h.Path}, k.calls.Do(ctx, "host path "+h.Path, 0, func() error { return k.hold(h, v) })
}

// answers is how long a file system has to say what is at a path of it.
const answers = 30 * time.Second

func (k hostPaths) hold(h *corev1.HostPathVolumeSource, v *kind.Volume) error {
	if !filepath.IsAbs(h.Path) {
		return fmt.Errorf("host path %q is not absolute", h.Path)
	}
	if err := k.own.refuse(h.Path); err != nil && !(k.own.drivers(h.Path) && privilegedAlone(v)) {
		return err
	}
	want := corev1.HostPathUnset
	if h.Type != nil {
		want = *h.Type
	}
	info, err := os.Stat(h.Path)
	if errors.Is(err, os.ErrNotExist) {
		return createHostPath(h.Path, want)
	}
	if err != nil {
		return fmt.Errorf("host path %s: %w", h.Path, errors.Unwrap(err))
	}
	mode := info.Mode()
	ok, must := true, ""
	switch want {
	case corev1.HostPathUnset:
	case corev1.HostPathDirectory, corev1.HostPathDirectoryOrCreate:
		ok, must = mode.IsDir(), "a directory"
	case corev1.HostPathFile, corev1.HostPathFileOrCreate:
		ok, must = mode.IsRegular(), "a file"
	case corev1.HostPathSocket:
		ok, must = mode&os.ModeSocket != 0, "a socket"
	case corev1.HostPathCharDev:
		ok, must = mode&os.ModeCharDevice != 0, "a character device"
	case corev1.HostPathBlockDev:
		ok, must = mount.IsBlock(mode), "a block device"
	default:
		return fmt.Errorf("host path %s: unknown type %q", h.Path, want)
	}
	if !ok {
		return fmt.Errorf("host path %s is %s, but its type says %s: it must be %s", h.Path, describe(mode), want, must)
	}
	return nil
}

func createHostPath(path string, kind corev1.HostPathType) error {
	switch kind {
	case corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(path, hostDirMode); err != nil {
			return fmt.Errorf("create host path: %w", err)
		}
		return nil
	case corev1.HostPathFileOrCreate:
		if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("host path %s: its directory does not exist, and type %s makes only the file", path, kind)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, hostFileMode)
		if err != nil {
			return fmt.Errorf("create host path: %w", err)
		}
		return f.Close()
	}
	return fmt.Errorf("host path %s does not exist, and type %s does not make it", path, kind)
}

func describe(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode.IsRegular():
		return "a file"
	case mode&os.ModeSocket != 0:
		return "a socket"
	case mode&os.ModeNamedPipe != 0:
		return "a pipe"
	case mode&os.ModeCharDevice != 0:
		return "a character device"
	case mode&os.ModeDevice != 0:
		return "a block device"
	}
	return "of no known kind"
}

// ownDirs are the directories of the agent.
type ownDirs struct {
	root string
	own  []string // further ones
	open []string // directories in those, which pods may have
}

// refuse refuses the agent's own directories and what is in them: a pod that writes there could break every other one.
func (d ownDirs) refuse(path string) error {
	real := realPath(path)
	for _, open := range d.open {
		if dir := realPath(open); real == dir || strings.HasPrefix(real, dir+"/") {
			return nil
		}
	}
	for _, own := range append([]string{d.root}, d.own...) {
		if own == "" {
			continue
		}
		dir := realPath(own)
		if real == dir || strings.HasPrefix(real, dir+"/") || leadsThrough(real, dir) {
			return fmt.Errorf("host path %s is in %s, which is the agent's own", path, own)
		}
	}
	return nil
}

// drivers says whether a path is where drivers of volumes mount them: the directory with those of the pods, or the one
// where volumes are staged.
func (d ownDirs) drivers(path string) bool {
	real := realPath(path)
	for _, name := range []string{podsDir, "plugins"} {
		dir := realPath(filepath.Join(d.root, name))
		if real == dir || strings.HasPrefix(real, dir+"/") {
			return true
		}
	}
	return false
}

// privilegedAlone says whether only containers have the volume that can do anything on the node without it.
func privilegedAlone(v *kind.Volume) bool {
	for _, list := range [][]corev1.Container{v.Pod.Spec.InitContainers, v.Pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			has := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.Name })
			if s := c.SecurityContext; has && (s == nil || s.Privileged == nil || !*s.Privileged) {
				return false
			}
		}
	}
	return true
}

// leadsThrough says whether a path has a directory in it that is dir itself: a bind mount is no link, and shows what it
// is only by its inode.
func leadsThrough(path, dir string) bool {
	own, err := os.Stat(dir)
	if err != nil {
		return false
	}
	for at := path; at != "/" && at != "."; at = filepath.Dir(at) {
		if info, err := os.Stat(at); err == nil && os.SameFile(info, own) {
			return true
		}
	}
	return false
}

// realPath resolves the links of what exists of a path.
func realPath(path string) string {
	path = filepath.Clean(path)
	rest := ""
	for at := path; ; {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == "/" || at == "." {
			return path
		}
		rest = filepath.Join(filepath.Base(at), rest)
		at = filepath.Dir(at)
	}
}

func parseSize(text string) (int64, error) {
	// Names of huge pages are in lower case when they come from the name of a medium.
	if n := len(text); n > 1 && text[n-1] == 'i' {
		text = text[:n-2] + strings.ToUpper(text[n-2:n-1]) + "i"
	}
	q, err := quantity.Parse(text)
	if err != nil {
		return 0, fmt.Errorf("parse page size %q: %w", text, err)
	}
	if q.Value() <= 0 {
		return 0, fmt.Errorf("page size %q is not positive", text)
	}
	return q.Value(), nil
}
