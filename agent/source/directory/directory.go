// Package directory tells what the files of a manifest directory have. The kernel's notifications drive it, file by
// file and without a delay: a file is read when its writer closes it or when it is moved into place. A slow rescan only
// checks that the notifications told the truth. A file that goes is given a moment to come back, and one that is being
// written until its writer has ended.
package directory

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// A file that goes is given a moment to come back. An editor that keeps a backup renames the old file first, and
	// writes a whole new one then. What removes a file to save it, as tar and git do, makes it again with the next
	// calls; and the files of a directory being deleted go one after the other, before it does. Each further removal
	// extends the moment, up to a limit.
	renamedQuiet = 20 * time.Millisecond
	removedQuiet = 5 * time.Millisecond
	goneLimit    = 200 * time.Millisecond
	// A directory that comes back is usually filled one file after the other.
	goneReturned = time.Second
	// A file without a manifest's suffix is most often a temporary one, soon to be renamed or removed.
	oddDelay = 500 * time.Millisecond

	// The kernel tells that a writer closed a file a moment before it counts one writer less, so a file that seems to
	// have one is looked at again, soon at first.
	busyFirst = 50 * time.Microsecond
	busyMost  = time.Second
	busyTold  = 5 * time.Second // then it is said
)

// Files is told what becomes of the files of a directory, by name. It is called from the methods of the [Directory]
// alone.
type Files interface {
	// Content tells what a file has now, which may be what it had before. exposed is why it may not hold Secrets.
	Content(name string, data []byte, exposed error)
	// Unreadable tells that a file is there and cannot be read.
	Unreadable(name string, err error)
	// Missing tells that a file that was to be read is not there. It may come back.
	Missing(name string)
	// Removed tells that a file is gone for good.
	Removed(name string)
	// Directory tells what is wrong with the directory itself; nil: nothing is.
	Directory(err error)
}

// Config says which directory is watched, and for whom.
type Config struct {
	Dir   string        // need not exist yet
	Quiet time.Duration // how long a file that goes may take to come back; 0: 20 ms if renamed, 5 ms if removed
	Files Files
	Log   *slog.Logger
}

// Directory watches one directory. It has no goroutine of its own but the one that reads notifications: one goroutine
// calls its methods, and all but [Directory.Missed] are for that one. Its lifecycle:
//
//	Open, Begin, then again and again:
//	Settle; Next while Waiting, else Handle what Changes has, or Rescan now and then; no later than when Due is over
type Directory struct {
	cfg    Config
	missed atomic.Int64

	watch   *watcher
	changes chan []byte
	done    chan struct{}
	reads   sync.WaitGroup

	dir   string // where Dir leads now, "" when nowhere
	dirID identity
	known map[string]identity // by entry

	todo  []string // entries to read
	gone  gone
	later map[string]time.Time // entries to read then: odd ones, and those being written
	busy  map[string]busy      // files found open for writing
	began bool                 // the first scan has begun
}

// New returns a Directory that is not watched yet.
func New(cfg Config) *Directory {
	return &Directory{
		cfg: cfg, changes: make(chan []byte), done: make(chan struct{}), known: map[string]identity{},
		gone: gone{names: map[string]bool{}}, later: map[string]time.Time{}, busy: map[string]busy{},
	}
}

// Open begins to watch. Without it, or when it fails, only rescans find what has changed.
func (d *Directory) Open() error {
	w, err := newWatcher()
	if err != nil {
		return err
	}
	d.watch = w
	d.reads.Go(func() { w.read(d.changes, d.done) })
	return nil
}

// Close ends the watch.
func (d *Directory) Close() {
	close(d.done)
	if d.watch != nil {
		d.watch.file.Close()
	}
	d.reads.Wait()
}

// Know says of a file that it was there before, so that it is told of when it is not there any more. It comes before
// Begin.
func (d *Directory) Know(name string) { d.known[name] = identity{} }

func (d *Directory) knows(name string) bool {
	_, ok := d.known[name]
	return ok
}

// Begin looks for the first time at what there is.
func (d *Directory) Begin() {
	d.resolve()
	d.scan(false)
	d.began = true
}

// Rescan looks at everything, which should find nothing that was not told.
func (d *Directory) Rescan() {
	d.resolve()
	d.scan(true)
}

// Missed counts the changes that a rescan found and no notification had told of.
func (d *Directory) Missed() int64 { return d.missed.Load() }

// Changes are the kernel's notifications, for Handle.
func (d *Directory) Changes() <-chan []byte { return d.changes }

// Waiting says whether there are files to read.
func (d *Directory) Waiting() bool { return len(d.todo) > 0 }

// Read says whether everything that the directory had was read.
func (d *Directory) Read() bool { return d.began && len(d.todo) == 0 && len(d.gone.names) == 0 }

// Going says whether a file is not there, and may still come back.
func (d *Directory) Going(name string) bool { return d.gone.names[name] }

// Next reads the next file.
func (d *Directory) Next() {
	name := d.todo[0]
	d.todo = d.todo[1:]
	d.check(name)
}

// Due is how long nothing needs to be done if nothing happens.
func (d *Directory) Due(now time.Time) time.Duration {
	due := now.Add(time.Hour)
	if len(d.gone.names) > 0 {
		due = d.gone.at
	}
	for _, t := range d.later {
		if t.Before(due) {
			due = t
		}
	}
	return max(0, due.Sub(now))
}

// The tags of watches that are no entry of the directory; no entry has a slash in its name.
const (
	tagPath = "/path"
	tagDir  = "/dir"
)

// resolve finds out where the directory is now and watches the way there.
func (d *Directory) resolve() {
	steps, dir, ok := trail(d.cfg.Dir, maskEntries|maskSelf)
	// Watching comes after looking, so a change between the two would go unseen: look again until nothing changed.
	fresh := false
	for range 10 {
		fresh = d.watchPath(steps, ok) || fresh
		again, dir2, ok2 := trail(d.cfg.Dir, maskEntries|maskSelf)
		same := dir2 == dir && ok2 == ok && slices.Equal(again, steps)
		steps, dir, ok = again, dir2, ok2
		if same {
			break
		}
	}
	var st unix.Stat_t
	var problem string
	switch {
	case !ok:
		problem = "directory is missing: pods that run are left running"
	case unix.Stat(dir, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR:
		ok, problem = false, "is no directory: pods that run are left running"
	}
	if !ok {
		d.dir, d.dirID = "", identity{}
		d.cfg.Files.Directory(errors.New(problem))
		return
	}
	id := identity{dev: st.Dev, ino: st.Ino}
	// A new directory may have the inode number of the one that went, but not its watch.
	if d.dir == dir && d.dirID == id && !fresh {
		return
	}
	d.dir, d.dirID = dir, id
	if d.began {
		d.scan(false)
		d.gone.at = time.Now().Add(goneReturned)
		d.gone.most = d.gone.at
	}
}

// watchPath watches the way to the directory, and says whether the directory itself is one that was not watched before.
func (d *Directory) watchPath(steps []step, ok bool) bool {
	if d.watch == nil {
		return false
	}
	way, end := steps, []step(nil)
	if ok {
		way, end = steps[:len(steps)-1], steps[len(steps)-1:]
	}
	_, err := d.watch.set(tagPath, way)
	fresh, e := d.watch.set(tagDir, end)
	if err = errors.Join(err, e); err != nil {
		d.cfg.Log.Warn("changes of manifests are noticed only by the rescan", "dir", d.cfg.Dir, "error", err)
	}
	return fresh
}

// Handle acts upon one of Changes.
func (d *Directory) Handle(data []byte) {
	events, overflow := d.watch.parse(data)
	resolve := overflow
	for _, e := range events {
		switch {
		case e.tag == tagPath:
			resolve = true
		case e.tag != tagDir:
			d.touch(e.tag)
		case e.name == "":
			resolve = true
		default:
			d.entry(e)
		}
	}
	if resolve {
		d.resolve()
	}
	if overflow {
		d.cfg.Log.Warn("the kernel dropped notifications, so all manifests are looked at", "dir", d.cfg.Dir)
		d.scan(false)
	}
}

// entry acts upon what happened to one entry of the directory.
func (d *Directory) entry(e event) {
	switch {
	case ignoredName(e.name):
	case e.mask&(unix.IN_MOVED_FROM|unix.IN_DELETE) != 0:
		delete(d.later, e.name)
		d.vanish(e.name, d.cfg.quietAfter(e.mask))
	case e.mask&unix.IN_ATTRIB != 0 && d.knows(e.name):
		d.touch(e.name) // its mode says whether it may hold Secrets
	case e.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO|unix.IN_CREATE) == 0:
	case oddName(e.name) && !d.knows(e.name):
		d.later[e.name] = time.Now().Add(oddDelay)
	default:
		d.touch(e.name)
	}
}

// touch puts a file on the list of those to read.
func (d *Directory) touch(name string) {
	delete(d.later, name)
	if !slices.Contains(d.todo, name) {
		d.todo = append(d.todo, name)
	}
}

// vanish notes that a file went, to be acted upon when no more do.
func (d *Directory) vanish(name string, quiet time.Duration) {
	if !d.knows(name) {
		return
	}
	d.gone.add(name, quiet)
}

// Settle acts upon what is due: files that are gone for good, and odd ones that are there to stay.
func (d *Directory) Settle(now time.Time) {
	for name, t := range d.later {
		if !now.Before(t) {
			d.touch(name)
		}
	}
	if !d.gone.due(now) {
		return
	}
	// The files of a directory go before it does; whether it is still there decides what that meant.
	d.resolve()
	if !d.gone.due(now) {
		return
	}
	names := d.gone.names
	d.gone.names = map[string]bool{}
	if d.dir == "" {
		return
	}
	for name := range names {
		if _, err := os.Lstat(filepath.Join(d.dir, name)); err == nil {
			d.touch(name)
		} else if os.IsNotExist(err) {
			d.drop(name)
		}
	}
}
