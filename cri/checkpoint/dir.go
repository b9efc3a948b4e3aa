package checkpoint

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What a checkpoint has, by the names that checkpointctl and runtimes look for.
const (
	LogFile        = "dump.log"  // criu's
	SpecFile       = "spec.dump" // OCI runtime specification
	ConfigFile     = "config.dump"
	StatusFile     = "status.dump" // runtimeapi.ContainerStatus
	TimesFile      = "status"
	RootfsDiffFile = "rootfs-diff.tar"
	DeletedFile    = "deleted.files" // of the layers below, a list of paths
	ContainerLog   = "container.log"
	imagesDir      = "checkpoint"
)

// Config is the content of [ConfigFile].
type Config struct {
	ID              string    `json:"id"`
	Name            string    `json:"name"`
	RootfsImage     string    `json:"rootfsImage,omitempty"`
	RootfsImageRef  string    `json:"rootfsImageRef,omitempty"`
	RootfsImageName string    `json:"rootfsImageName,omitempty"`
	Runtime         string    `json:"runtime,omitempty"`
	CreatedTime     time.Time `json:"createdTime"`
	CheckpointedAt  time.Time `json:"checkpointedTime"`
}

// Times is the content of [TimesFile], in nanoseconds since 1970.
type Times struct {
	CreatedAt, StartedAt, FinishedAt int64
	Pid                              int
}

// Dir is a directory in which a checkpoint is put together.
type Dir string

// NewDir makes a directory below parent, which is made too.
func NewDir(parent, name string) (Dir, error) {
	d := Dir(filepath.Join(parent, name))
	// What is in it is the memory of processes.
	return d, os.MkdirAll(d.Images(), 0o700)
}

// Images is where criu writes what it dumps.
func (d Dir) Images() string { return d.Path(imagesDir) }

// Path is where one of the files goes.
func (d Dir) Path(name string) string { return filepath.Join(string(d), name) }

// Remove removes the directory.
func (d Dir) Remove() error { return os.RemoveAll(string(d)) }

// PutJSON writes one of the files.
func (d Dir) PutJSON(name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	return os.WriteFile(d.Path(name), b, 0o600)
}

// reason is the first error that criu has logged: those after it follow from it.
func (d Dir) reason() string {
	b, err := os.ReadFile(d.Path(LogFile))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if _, text, ok := strings.Cut(line, "Error ("); ok {
			return "Error (" + strings.TrimSpace(text)
		}
	}
	return ""
}

// Pack writes all of the directory as a tar archive to location. The archive gets its name when all of it is on the
// disk, so that a crash leaves nothing there. There must be no file of that name.
func (d Dir) Pack(ctx context.Context, location string) error {
	f, err := os.OpenFile(filepath.Dir(location), os.O_RDWR|unix.O_TMPFILE, 0o600)
	if err != nil {
		return fmt.Errorf("make a file without a name: %w", err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = filepath.WalkDir(string(d), func(path string, e fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil || path == string(d) {
			return err
		}
		return d.add(w, path, e)
	})
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.AT_FDCWD, location, unix.AT_SYMLINK_FOLLOW); err != nil {
		return &os.PathError{Op: "link", Path: location, Err: err}
	}
	return nil
}

func (d Dir) add(w *tar.Writer, path string, e fs.DirEntry) error {
	info, err := e.Info()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() {
		return nil
	}
	h, err := tar.FileInfoHeader(info, "")
	if err != nil {
		return err
	}
	if h.Name, err = filepath.Rel(string(d), path); err != nil {
		return err
	}
	h.Uname, h.Gname = "", ""
	if info.IsDir() {
		h.Name += "/"
		return w.WriteHeader(h)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
