package volume

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/volume/kind"
	"github.com/berth-node/berth/internal/filetree"
	"github.com/berth-node/berth/internal/mount"
)

// owner is the user as the kernel has it. Files are made by root, or in a test by who runs it.
func owner(f *kind.File) int {
	if f.User == nil {
		return os.Geteuid()
	}
	return int(*f.User)
}

// The names in a volume that is made of objects, as other tools know them: NAME is a link to ..data/NAME, and ..data
// one to the directory with the present content. Renaming a new ..data over the old one changes all files in one step.
const (
	dataLink    = "..data"
	dataLinkNew = "..data_tmp"
)

// memoryFiles bounds a volume of files in memory. It is a limit only: what is not used takes no memory. An object has
// at most 1 MiB.
const memoryFiles = "64m"

// Where the files of a volume that is made of objects are.
const (
	onDisk   = false
	inMemory = true
)

// objectFiles are volumes of files that are made of objects, or of the pod itself.
type objectFiles struct {
	traits   kind.Traits
	inMemory bool // they are kept off the disk
	makes    func(*corev1.VolumeSource) bool
}

// Traits are those of the one of these kinds.
func (k objectFiles) Traits() kind.Traits { return k.traits }

// ReadOnly is true: it is the agent who writes the files.
func (objectFiles) ReadOnly(kind.Source) bool { return true }

// Makes says whether the source is of the one of these kinds.
func (k objectFiles) Makes(s kind.Source) bool { return k.makes(s.Pod) }

// Setup makes the volume, or brings it up to date.
func (k objectFiles) Setup(_ context.Context, v *kind.Volume) (kind.Made, error) {
	path := v.Path(k.traits.Plugin)
	return kind.Made{Path: path}, k.setup(path, v)
}

func (k objectFiles) setup(path string, v *kind.Volume) error {
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	mode, gid := uint32(0o755), -1
	if s := v.Pod.Spec.SecurityContext; s != nil && s.FSGroup != nil {
		mode, gid = mode|unix.S_ISGID, int(*s.FSGroup)
	}
	if mounted, err := mount.Is(path); err != nil {
		return err
	} else if k.inMemory && !mounted {
		if err := mount.Memory("tmpfs", path, "size="+memoryFiles+",mode=755"); err != nil {
			return err
		}
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return err
	}
	defer root.Close()
	w := writer{root: root, path: path, gid: gid}
	if err := w.own(".", -1, mode); err != nil {
		return err
	}
	return w.write(v.Files)
}

// writer writes the files of one volume. The containers of the pod have it mounted read-only.
type writer struct {
	root *os.Root
	path string // of the volume, for messages
	gid  int    // -1: nobody's in particular
}

// write makes files the content of the volume in one step. What the volume has already is not written again. Cut off at
// any point it leaves the old content or the new one, and what else it leaves the next write takes away.
func (w *writer) write(files []kind.File) error {
	for _, f := range files {
		if err := checkPath(f.Path); err != nil {
			return err
		}
	}
	now, err := w.root.Readlink(dataLink)
	if err != nil || !w.has(now, files) {
		if now, err = w.stage(files); err != nil {
			return err
		}
		if err := w.root.Remove(dataLinkNew); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := w.root.Symlink(now, dataLinkNew); err != nil {
			return err
		}
		if err := w.root.Rename(dataLinkNew, dataLink); err != nil {
			return err
		}
	}
	names := map[string]bool{}
	for _, f := range files {
		name, _, _ := strings.Cut(f.Path, "/")
		names[name] = true
	}
	for name := range names {
		to := dataLink + "/" + name
		if has, err := w.root.Readlink(name); err == nil && has == to {
			continue
		}
		if err := w.root.Symlink(to, name); err != nil {
			return err
		}
	}
	return w.tidy(now, names)
}

// checkPath refuses what could leave the volume, or be taken for one of the writer's own names.
func checkPath(path string) error {
	if !filepath.IsLocal(path) || strings.HasPrefix(path, "..") || filepath.Clean(path) != path || path == "." {
		return fmt.Errorf("%q is no path of a file in a volume", path)
	}
	return nil
}

// has says whether the directory has exactly these files.
func (w *writer) has(dir string, files []kind.File) bool {
	if !strings.HasPrefix(dir, "..") || strings.Contains(dir, "/") {
		return false
	}
	want := map[string]*kind.File{}
	for i := range files {
		want[files[i].Path] = &files[i]
	}
	seen := 0
	err := fs.WalkDir(w.root.FS(), dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f := want[strings.TrimPrefix(path, dir+"/")]
		info, err := d.Info()
		if err != nil || f == nil || uint32(info.Mode()&0o777) != w.fileMode(f.Mode)&0o777 || info.Size() != int64(len(f.Data)) {
			return fs.ErrInvalid
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != owner(f) {
			return fs.ErrInvalid
		}
		data, err := w.root.ReadFile(path)
		if err != nil || !bytes.Equal(data, f.Data) {
			return fs.ErrInvalid
		}
		seen++
		return nil
	})
	return err == nil && seen == len(files)
}

// stage writes the files into a directory of their own and returns its name.
func (w *writer) stage(files []kind.File) (string, error) {
	dir := time.Now().UTC().Format("..2006_01_02_15_04_05.000000000")
	if err := w.root.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	made := map[string]bool{}
	for i := range files {
		f := &files[i]
		for n, c := range f.Path {
			if sub := dir + "/" + f.Path[:n]; c == '/' && !made[sub] {
				if err := w.root.Mkdir(sub, 0o700); err != nil {
					return "", err
				}
				if err := w.own(sub, -1, w.dirMode()); err != nil {
					return "", err
				}
				made[sub] = true
			}
		}
		path := dir + "/" + f.Path
		if err := w.root.WriteFile(path, f.Data, 0o600); err != nil {
			return "", err
		}
		if err := w.own(path, owner(f), w.fileMode(f.Mode)); err != nil {
			return "", err
		}
	}
	return dir, w.own(dir, -1, w.dirMode())
}

func (w *writer) dirMode() uint32 {
	if w.gid >= 0 {
		return 0o755 | unix.S_ISGID
	}
	return 0o755
}

// fileMode lets the pod's group read what it is given.
func (w *writer) fileMode(mode uint32) uint32 {
	if w.gid >= 0 {
		mode |= 0o440
	}
	return mode
}

// own gives a file its user and group and then its mode, since a change of them clears the setgid bit. What is made is
// the agent's own.
func (w *writer) own(path string, uid int, mode uint32) error {
	if uid == os.Geteuid() {
		uid = -1
	}
	if uid >= 0 || w.gid >= 0 {
		if err := w.root.Lchown(path, uid, w.gid); err != nil {
			return err
		}
	}
	m := fs.FileMode(mode & 0o777)
	if mode&unix.S_ISGID != 0 {
		m |= fs.ModeSetgid
	}
	return w.root.Chmod(path, m)
}

// tidy takes away what is neither the present content nor a link to it.
func (w *writer) tidy(now string, names map[string]bool) error {
	d, err := w.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	entries, err := d.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for _, name := range entries {
		if name == dataLink || name == now || names[name] {
			continue
		}
		// Nobody else writes to it.
		if err := filetree.RemoveAt(context.Background(), int(d.Fd()), name, w.path, filetree.Removal{}); err != nil {
			return err
		}
	}
	return nil
}
