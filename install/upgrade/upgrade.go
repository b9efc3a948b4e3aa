// Package upgrade replaces the programs of a node by others, with a way back: what is done is on the disk before it is
// done, each file is replaced as a whole, and whoever finds a change that was cut off finishes or undoes it.
//
//	preparing ──> stopping ──> swapping ──> starting ──> done
//	    │            │            │            │           │ when asked to
//	    └─> (undone) └────────────┴────────────┴───────────┴─> rolling-back ──> (undone)
package upgrade

import (
	"context"
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

// State is how far an upgrade is.
type State string

// States, each of which is on the disk before what it says is begun.
const (
	Preparing   State = "preparing"    // new files are written beside those that they replace
	Stopping    State = "stopping"     // the agent ends, and its stores are copied
	Swapping    State = "swapping"     // the new files take the names
	Starting    State = "starting"     // the new agent starts, and is waited for
	Done        State = "done"         // it runs; what was before is kept
	RollingBack State = "rolling-back" // all of that backwards
)

// File is a file that is replaced.
type File struct {
	Path string      `json:"path"`
	From string      `json:"-"`   // has the new content, until it is prepared
	Old  string      `json:"old"` // SHA-256 of what is replaced, in hex; "": nothing was there
	New  string      `json:"new"`
	Mode fs.FileMode `json:"mode"`
}

// Job is what is to be done. The program that is started comes last of the files: with the old one, the others work
// either way.
type Job struct {
	From  string `json:"from"` // versions, for people
	To    string `json:"to"`
	Files []File `json:"files"`
	// Stores are files, and directories of files, that a version of the program writes its own way; absolute.
	Stores []string `json:"stores"`
	// Package has the packager install this file, instead of files being replaced one by one, and Before is a package
	// below [PackagesName] by which it goes back; "": there is none, and the files alone go back.
	Package string `json:"package,omitempty"`
	Before  string `json:"before,omitempty"`
	// Stale are files of the upgrade before, found out here, whose old versions are kept no longer than its record.
	Stale []string `json:"stale,omitempty"`
	// Node is for who knows the node: how it is stopped and started.
	Node json.RawMessage `json:"node"`
}

// record is a job and how far it is.
type record struct {
	Version int   `json:"version"`
	State   State `json:"state"`
	Job
	// Restore has the stores restored when the old programs come back: the new ones may have written to them.
	Restore bool `json:"restore,omitempty"`
	// Late says that the upgrade was done when it was taken back.
	Late bool `json:"late,omitempty"`
	// Called says that the packager may have begun to install the package.
	Called bool `json:"called,omitempty"`
}

const (
	recordVersion = 1
	maxRecord     = 4 << 20 // bytes
)

// Names in the directory of upgrades, and what names end with beside the files that are replaced.
const (
	underWayName = "under-way.json"
	settledName  = "upgraded.json"
	storesName   = "stores"
	lockName     = "lock"
	stageName    = "release"

	// PackagesName is the directory, in that of upgrades, of packages of what was there: each is kept while a record
	// names it.
	PackagesName = "packages"

	// Staged is a new file that does not have its name yet, Previous the one that had it, and back that one on its way
	// back.
	Staged   = ".upgrade"
	Previous = ".previous"
	back     = ".back"
)

// Node is what runs the programs.
type Node interface {
	// Stop ends the agent, and keeps it from starting until release is called. It succeeds when none runs.
	Stop(ctx context.Context) (release func(), err error)
	// Start starts the agent and returns when the program is ready: it is the one that runs pods now.
	Start(ctx context.Context, program string) error
	// Again is Start for the program that ran before. It has more patience: nothing comes in its place.
	Again(ctx context.Context, program string) error
	// Install has the packager install a package.
	Install(ctx context.Context, file string) error
	// Owns is told which files are ours before they are there, and again when it is settled which of them stay.
	Owns(files []File, settled bool) error
}

// ErrUnderWay says that an upgrade was cut off.
var ErrUnderWay = errors.New("an upgrade was cut off")

// ErrRolledBack says that the new version did not come up, and that what was before runs again.
var ErrRolledBack = errors.New("rolled back")

// Upgrades is where upgrades of one installation are recorded. One process at a time has it open.
type Upgrades struct {
	dir  string
	tell func(string)
	lock *os.File
	// before is called before each change of the disk, by what it is: a test ends the process there.
	before func(change string)
}

// Open opens the directory of upgrades, which is made. tell is told each step before it is taken.
func Open(dir string, tell func(string)) (*Upgrades, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of upgrades: %w", err)
	}
	f, err := lock(filepath.Join(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("lock upgrades in %s: %w", dir, err)
	}
	return &Upgrades{dir: dir, tell: tell, lock: f, before: func(string) {}}, nil
}

// lock takes the lock, whose file [Upgrades.Forget] removes: a lock of a file that has lost its name keeps nobody out.
func lock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errors.New("another one goes on")
		}
		return nil, err
	}
	held, err := f.Stat()
	named, nerr := os.Lstat(path)
	if err != nil || nerr != nil || !os.SameFile(held, named) {
		f.Close()
		return nil, errors.Join(err, errors.New("another one has just ended: try again"))
	}
	return f, nil
}

// Close lets others in.
func (u *Upgrades) Close() { u.lock.Close() }

func (u *Upgrades) copies() copies { return copies{u.at(storesName), u.before} }

func (u *Upgrades) names() names { return names{u.tell, u.before} }

func (u *Upgrades) at(name string) string { return filepath.Join(u.dir, name) }

// Stage is an empty directory that releases are unpacked in; what was left there is removed.
func (u *Upgrades) Stage() (string, error) {
	dir := u.at(stageName)
	err := os.RemoveAll(dir)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return "", fmt.Errorf("make directory for the release: %w", err)
	}
	return dir, nil
}

// sweep removes what was unpacked of a release, and packages that no record names.
func (u *Upgrades) sweep() {
	_ = os.RemoveAll(u.at(stageName))
	used := map[string]bool{}
	for _, name := range []string{underWayName, settledName} {
		r, err := u.read(name)
		if err != nil {
			return // it may name any of them
		}
		if r != nil {
			used[r.Before] = true
		}
	}
	all, _ := os.ReadDir(u.at(PackagesName))
	for _, d := range all {
		if path := filepath.Join(u.at(PackagesName), d.Name()); !used[path] {
			_ = os.RemoveAll(path)
		}
	}
	_ = os.Remove(u.at(PackagesName)) // it stays while it has one
}

// read reads a record; nil when there is none.
func (u *Upgrades) read(name string) (*record, error) {
	f, err := os.OpenFile(u.at(name), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read upgrade: %w", err)
	}
	defer f.Close()
	r := &record{}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil {
		err = r.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read upgrade: %s: %w", f.Name(), err)
	}
	return r, nil
}

func (r *record) check() error {
	if r.Version != recordVersion {
		return fmt.Errorf("it has version %d, and this is %d", r.Version, recordVersion)
	}
	switch r.State {
	case Preparing, Stopping, Swapping, Starting, Done, RollingBack:
	default:
		return fmt.Errorf("it has the state %q", r.State)
	}
	return r.Job.check()
}

func (j *Job) check() error {
	if len(j.Files) == 0 {
		return errors.New("it has no files")
	}
	for _, f := range j.Files {
		if !filepath.IsAbs(f.Path) || f.Path != filepath.Clean(f.Path) {
			return fmt.Errorf("the path %q is not absolute and clean", f.Path)
		}
	}
	if j.Before != "" && (!filepath.IsAbs(j.Before) || j.Before != filepath.Clean(j.Before)) {
		return fmt.Errorf("the package %q is not absolute and clean", j.Before)
	}
	for _, s := range slices.Concat(j.Stores, j.Stale) {
		if !filepath.IsAbs(s) || s != filepath.Clean(s) {
			return fmt.Errorf("the path %q is not absolute and clean", s)
		}
	}
	return nil
}

// to has the record say the state.
func (u *Upgrades) to(r *record, s State) error {
	u.before(string(s))
	r.Version, r.State = recordVersion, s
	data, err := json.MarshalIndent(r, "", "\t")
	if err == nil {
		err = atomicfile.WriteSynced(u.at(underWayName), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record upgrade: %w", err)
	}
	return nil
}

// Found is an upgrade that is recorded.
type Found struct {
	State    State
	From, To string
	Node     json.RawMessage

	record *record
}

// UnderWay is the upgrade that was cut off; nil when there is none.
func (u *Upgrades) UnderWay() (*Found, error) { return found(u.read(underWayName)) }

// CutOff is the upgrade that was cut off in a directory of upgrades, and that nobody goes on with; nil when there is
// none. Nothing is made or held for it.
func CutOff(dir string) (*Found, error) {
	r, err := (&Upgrades{dir: dir}).read(underWayName)
	if r == nil || err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, lockName))
	if err != nil {
		return found(r, nil) // whoever goes on has it open
	}
	defer f.Close()
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		return nil, nil
	}
	// It may have come to its end since.
	return found((&Upgrades{dir: dir}).read(underWayName))
}

// Last is the upgrade that was done last, and can be rolled back; nil when there is none.
func (u *Upgrades) Last() (*Found, error) { return found(u.read(settledName)) }

func found(r *record, err error) (*Found, error) {
	if r == nil || err != nil {
		return nil, err
	}
	return &Found{r.State, r.From, r.To, r.Node, r}, nil
}

// Program is the file that is started.
func (r *record) program() File { return r.Files[len(r.Files)-1] }

// Forget removes what is kept of the last upgrade. It fails with [ErrUnderWay] while one is.
func (u *Upgrades) Forget() error {
	if r, err := u.read(underWayName); err != nil || r != nil {
		return errors.Join(err, ErrUnderWay)
	}
	r, err := u.read(settledName)
	if err != nil {
		return err
	}
	if r != nil {
		for _, f := range r.Files {
			if err := remove(f.Path + Previous); err != nil {
				return fmt.Errorf("forget upgrade: %w", err)
			}
		}
	}
	if err := errors.Join(os.RemoveAll(u.at(storesName)), remove(u.at(settledName))); err != nil {
		return fmt.Errorf("forget upgrade: %w", err)
	}
	u.sweep()
	// Whoever comes from here on makes a lock of his own, and is not kept out.
	if err := remove(u.at(lockName)); err != nil {
		return fmt.Errorf("forget upgrade: %w", err)
	}
	_ = os.Remove(u.dir) // it stays when somebody has put something there
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
