package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The directories, where kubelet has them.
const (
	pluginName = "kubernetes.io~csi"
	stageDir   = "globalmount"
	publishDir = "mount"
	dataFile   = "vol_data.json"
	dirMode    = 0o750
)

// layout says where things are in the agent's root directory.
type layout struct{ root string }

// csi has what volumes share.
func (l layout) csi() string { return filepath.Join(l.root, "plugins", "kubernetes.io", "csi") }

// stage is where a volume is staged.
func (l layout) stage(v *Volume) string {
	if v.Block {
		return filepath.Join(l.devices(), "staging", v.Name)
	}
	return filepath.Join(l.csi(), v.Driver, digest(v.Handle), stageDir)
}

func (l layout) devices() string { return filepath.Join(l.csi(), "volumeDevices") }

// blockData is the directory of what is beside a block volume, where kubelet has it; "": nowhere, since the name is
// that of another directory there.
func (l layout) blockData(name string) string {
	if name == "publish" || name == "staging" {
		return ""
	}
	return filepath.Join(l.devices(), name, "data")
}

// target is where a pod has a volume.
func (l layout) target(block bool, podDir, uid, name string) string {
	if block {
		return filepath.Join(l.devices(), "publish", name, uid)
	}
	return filepath.Join(podDir, "volumes", pluginName, name, publishDir)
}

// ours says whether a mount is where only this package has drivers mount, and whether that is to stage.
func (l layout) ours(mount string) (stage, yes bool) {
	if rel, ok := strings.CutPrefix(mount, l.csi()+"/"); ok {
		parts := strings.Split(rel, "/")
		switch {
		case len(parts) == 3 && parts[2] == stageDir, len(parts) == 3 && parts[0] == "volumeDevices" && parts[1] == "staging":
			return true, true
		case len(parts) == 4 && parts[0] == "volumeDevices" && parts[1] == "publish":
			return false, true
		}
		return false, false
	}
	rel, ok := strings.CutPrefix(mount, filepath.Join(l.root, "pods")+"/")
	parts := strings.Split(rel, "/")
	return false, ok && len(parts) == 5 && parts[1] == "volumes" && parts[2] == pluginName && parts[4] == publishDir
}

// within says whether a path is where only this package has drivers do anything.
func (l layout) within(path string) bool {
	if strings.HasPrefix(path, l.csi()+"/") {
		return true
	}
	rel, ok := strings.CutPrefix(path, filepath.Join(l.root, "pods")+"/")
	parts := strings.Split(rel, "/")
	return ok && len(parts) >= 4 && parts[1] == "volumes" && parts[2] == pluginName
}

// isBlock says whether a path is of a block device.
func (l layout) isBlock(path string) bool { return strings.HasPrefix(path, l.devices()+"/") }

// podOf is the UID of the pod that a volume is published to at a path; "": it is staged there, or nobody knows.
func (l layout) podOf(path string) string {
	if rel, ok := strings.CutPrefix(path, filepath.Join(l.devices(), "publish")+"/"); ok {
		_, uid, _ := strings.Cut(rel, "/")
		return uid
	}
	rel, ok := strings.CutPrefix(path, filepath.Join(l.root, "pods")+"/")
	if !ok {
		return ""
	}
	uid, _, _ := strings.Cut(rel, "/")
	return uid
}

// dataDir is the directory of what is beside a volume that is staged or published at a path.
func (l layout) dataDir(path string) string {
	rel, block := strings.CutPrefix(path, l.devices()+"/")
	if !block {
		return filepath.Dir(path)
	}
	_, rest, _ := strings.Cut(rel, "/")
	name, _, _ := strings.Cut(rest, "/")
	return l.blockData(name)
}

// begun are the places beside which there is what was written before anything was done there.
func (l layout) begun() []string {
	var out []string
	for pattern, name := range map[string]string{
		filepath.Join(globEscape(l.csi()), "*", "*", dataFile):                               stageDir,
		filepath.Join(globEscape(l.root), "pods", "*", "volumes", pluginName, "*", dataFile): publishDir,
	} {
		found, _ := filepath.Glob(pattern) // the pattern is a good one
		for _, path := range found {
			if dir := filepath.Dir(path); !l.isBlock(dir) {
				out = append(out, filepath.Join(dir, name))
			}
		}
	}
	for _, dir := range []string{"staging/*", "publish/*/*"} {
		found, _ := filepath.Glob(filepath.Join(globEscape(l.devices()), dir))
		out = append(out, found...)
	}
	return out
}

// key is the name of a volume's record.
func key(driver, handle string) string { return digest(driver + "\x00" + handle) }

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// ephemeralHandle is what the driver knows an ephemeral volume by: each pod's has another one, and has it after a
// restart too.
func ephemeralHandle(uid, name string) string { return "csi-" + digest(uid+"\x00"+name) }

// isName says whether a name leads nowhere but into its own directory.
func isName(s string) bool {
	return s != "" && len(s) <= unix.NAME_MAX && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00\n")
}

// mkdirs makes a directory with those above it that are not there, and does not look at it: what is mounted there may
// not answer.
func mkdirs(path string) error {
	err := unix.Mkdir(path, dirMode)
	if errors.Is(err, unix.ENOENT) && path != "/" {
		if err := mkdirs(filepath.Dir(path)); err != nil {
			return err
		}
		err = unix.Mkdir(path, dirMode)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make directory %s: %w", path, err)
	}
	return nil
}

// rmdirs removes a directory, and up to n-1 of those above it, as far as they are empty.
func rmdirs(path string, n int) {
	for ; n > 0 && unix.Rmdir(path) == nil; n-- {
		path = filepath.Dir(path)
	}
}

// removePoint removes what something was mounted on, which the driver may have done. It goes by names alone, so that
// what is mounted there is neither asked nor touched: the kernel has mount points be busy.
func removePoint(path string) error {
	err := unix.Rmdir(path)
	if errors.Is(err, unix.ENOTDIR) { // of a device: a file, which it may be a link to
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size > 0 {
			return fmt.Errorf("remove %s: the driver has left a file with data there", path)
		}
		err = unix.Unlink(path)
	}
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY): // a pod has written them while the driver had nothing mounted
		return fmt.Errorf("remove %s: the driver has left files there, on the node's own disk: once they are moved or removed, "+
			"the volume goes: %w", path, err)
	}
	return fmt.Errorf("remove %s: %w", path, err)
}
