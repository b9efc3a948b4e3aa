package install

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/internal/atomicfile"
)

// Installation is a tree that berth is laid out in.
type Installation struct {
	Root   string // the root directory: "/", or where a package is put together
	Layout Layout
	Args   []string // what the agent is started with; they are recorded
	// Untracked has nothing recorded: who makes a package of the tree knows its files.
	Untracked bool
}

const (
	recordName    = "installed.json"
	recordVersion = 1
	// maxRecord and maxProgram are how much is read of the record and of a program, in bytes.
	maxRecord  = 1 << 20
	maxProgram = 1 << 30
)

// record is what was installed: the files with the digests that each may have, and directories that were made for them.
// It is on the disk before the first of them.
type record struct {
	Version int                 `json:"version"`
	Files   map[string][]string `json:"files"`             // SHA-256 digests, in hex
	Foreign map[string]string   `json:"foreign,omitempty"` // the digests of files that had these paths before
	Dirs    []string            `json:"directories"`
	Args    []string            `json:"args,omitempty"` // the agent's
}

// Change is what an installation does with a file.
type Change struct {
	File
	Kind Kind

	data []byte // what the file is to have, read once: a program is 45 MB
}

// Kind is what is done with a file.
type Kind string

// Kinds of changes.
const (
	Create  Kind = "create"
	Replace Kind = "replace"
	Keep    Kind = "keep"    // it is the same already
	Foreign Kind = "foreign" // it was there before berth: it is set aside, and put back when berth is removed
	Edited  Kind = "edited"  // somebody has changed it since it was installed: it is set aside, and stays there
)

// What the names of files that were set aside end with.
const (
	ForeignSuffix = ".before-berth"
	EditedSuffix  = ".edited"
)

func (i *Installation) at(path string) string { return filepath.Join(i.Root, path) }

// RecordPath is where it is recorded what is installed.
func (i *Installation) RecordPath() string { return i.at(filepath.Join(i.Layout.Libexec, recordName)) }

func (i *Installation) read() (*record, error) {
	r := &record{Version: recordVersion, Files: map[string][]string{}, Foreign: map[string]string{}}
	f, err := os.OpenFile(i.RecordPath(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is installed: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil && r.Version != recordVersion {
		err = fmt.Errorf("it has version %d, and this is %d", r.Version, recordVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("read what is installed: %s: %w", i.RecordPath(), err)
	}
	if r.Files == nil {
		r.Files = map[string][]string{}
	}
	if r.Foreign == nil {
		r.Foreign = map[string]string{}
	}
	return r, nil
}

func (i *Installation) write(r *record) error {
	if i.Untracked {
		return nil
	}
	slices.Sort(r.Dirs)
	r.Dirs = slices.Compact(r.Dirs)
	data, err := json.MarshalIndent(r, "", "\t")
	if err == nil {
		err = atomicfile.WriteSynced(i.RecordPath(), append(data, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("record what is installed: %w", err)
	}
	return nil
}

// content is what a file is to have.
func (f *File) content() ([]byte, error) {
	if f.From == "" {
		return f.Data, nil
	}
	src, err := os.Open(f.From)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if st, err := src.Stat(); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() || st.Size() == 0 || st.Size() > maxProgram {
		return nil, fmt.Errorf("%s is no program", f.From)
	}
	return io.ReadAll(src)
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Plan says what installing the files would do. It changes nothing.
func (i *Installation) Plan(files []File) ([]Change, error) {
	r, err := i.read()
	if err != nil {
		return nil, err
	}
	out := make([]Change, 0, len(files))
	for _, f := range files {
		want, err := f.content()
		if err != nil {
			return nil, fmt.Errorf("read what %s is to be: %w", f.Path, err)
		}
		kind, err := i.change(r, f.Path, f.Mode, want)
		if err != nil {
			return nil, fmt.Errorf("look at %s: %w", f.Path, err)
		}
		out = append(out, Change{f, kind, want})
	}
	return out, nil
}

func (i *Installation) change(r *record, path string, mode fs.FileMode, want []byte) (Kind, error) {
	st, err := os.Lstat(i.at(path))
	if errors.Is(err, fs.ErrNotExist) {
		return Create, nil
	}
	if err != nil {
		return "", err
	}
	if !st.Mode().IsRegular() {
		return "", errors.New("it is no file: it is not replaced")
	}
	has, err := os.ReadFile(i.at(path))
	if err != nil {
		return "", err
	}
	switch {
	case bytes.Equal(has, want) && st.Mode().Perm() == mode:
		return Keep, nil
	case bytes.Equal(has, want) || slices.Contains(r.Files[path], digest(has)):
		return Replace, nil
	case len(r.Files[path]) > 0 && r.Foreign[path] != digest(has):
		return Edited, nil
	}
	return Foreign, nil
}

// Apply installs the files. It can be repeated, and be taken back by Remove whenever it has ended.
func (i *Installation) Apply(files []File) error {
	changes, err := i.Plan(files)
	if err != nil {
		return err
	}
	r, err := i.read()
	if err != nil {
		return err
	}
	r.Args = i.Args
	for _, c := range changes {
		if d := digest(c.data); !slices.Contains(r.Files[c.Path], d) {
			r.Files[c.Path] = append(r.Files[c.Path], d)
		}
		if c.Kind == Foreign {
			was, err := os.ReadFile(i.at(c.Path))
			if err != nil {
				return fmt.Errorf("look at %s: %w", c.Path, err)
			}
			r.Foreign[c.Path] = digest(was)
		}
		r.Dirs = append(r.Dirs, i.missing(filepath.Dir(c.Path))...)
	}
	r.Dirs = append(r.Dirs, i.missing(i.Layout.Libexec)...)
	if err := os.MkdirAll(filepath.Dir(i.RecordPath()), 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if err := i.write(r); err != nil {
		return err
	}
	for _, c := range changes {
		if err := i.put(c); err != nil {
			return fmt.Errorf("install %s: %w", c.Path, err)
		}
		r.Files[c.Path] = []string{digest(c.data)}
	}
	return i.write(r) // what was there before is no file of ours any more
}

// missing are the directories up to a path that are not there.
func (i *Installation) missing(dir string) []string {
	var out []string
	for ; dir != "/" && dir != "."; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(i.at(dir)); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		out = append(out, dir)
	}
	return out
}

func (i *Installation) put(c Change) error {
	path := i.at(c.Path)
	if c.Kind == Keep {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := setAside(path, c.Kind); err != nil {
		return err
	}
	// The program that runs is not written to (ETXTBSY), but gives its name to another file.
	if err := atomicfile.WriteSynced(path, c.data, c.Mode); err != nil {
		return err
	}
	return os.Chmod(path, c.Mode) // the mask of who installs may have taken some away
}

// setAside gives a file that is not as it was installed another name as well, which is its only one when the new file
// has taken its own.
func setAside(path string, k Kind) error {
	aside := path + ForeignSuffix
	switch k {
	case Edited:
		aside = path + EditedSuffix
		_ = os.Remove(aside) // of two edits the later counts
	case Foreign:
		if err := makeWay(path, aside); err != nil {
			return fmt.Errorf("set aside what it was: %w", err)
		}
	default:
		return nil
	}
	if err := os.Link(path, aside); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("set aside what it was: %w", err)
	}
	return nil
}

// makeWay gives another file than path's own that has the name where it is set aside, as an earlier removal may have
// left one, the first name that is free.
func makeWay(path, aside string) error {
	there, err := os.Lstat(aside)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	own, oerr := os.Lstat(path)
	if err := errors.Join(err, oerr); err != nil || os.SameFile(there, own) {
		return err
	}
	for n := 1; ; n++ {
		err := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, fmt.Sprintf("%s.%d", aside, n), unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
}

// Installed says whether something is recorded as installed, and with what the agent is started.
func (i *Installation) Installed() (args []string, installed bool, err error) {
	r, err := i.read()
	if err != nil {
		return nil, false, err
	}
	return r.Args, len(r.Files) > 0, nil
}

// Own has files be ours that somebody else puts there, by their digests in hex, and none of another content when only
// is set. An installation that nothing is recorded of is not begun by it.
func (i *Installation) Own(digests map[string]string, only bool) error {
	r, err := i.read()
	if err != nil {
		return err
	}
	if len(r.Files) == 0 {
		return nil
	}
	for path, d := range digests {
		if !only {
			if err := i.spare(r, path, d); err != nil {
				return fmt.Errorf("look at %s: %w", path, err)
			}
		}
		switch {
		case only && d == "":
			delete(r.Files, path)
		case only:
			r.Files[path] = []string{d}
		case d != "" && !slices.Contains(r.Files[path], d):
			r.Files[path] = append(r.Files[path], d)
		}
		if !only {
			r.Dirs = append(r.Dirs, i.missing(filepath.Dir(path))...)
		}
	}
	return i.write(r)
}

// spare sets a file aside that somebody has changed since it was installed, and that is about to be replaced.
func (i *Installation) spare(r *record, path, next string) error {
	has, err := os.ReadFile(i.at(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if d := digest(has); len(r.Files[path]) == 0 || d == next || slices.Contains(r.Files[path], d) {
		return nil
	}
	return setAside(i.at(path), Edited)
}

// MakeDirs makes the directories of an installation that systemd-tmpfiles makes where there is one.
func (i *Installation) MakeDirs() error {
	for dir, mode := range map[string]fs.FileMode{i.Layout.Config: 0o755, i.Layout.Manifests: 0o700} {
		if err := os.MkdirAll(i.at(dir), mode); err != nil {
			return fmt.Errorf("make directory: %w", err)
		}
	}
	return nil
}
