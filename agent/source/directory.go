package source

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The tags of watches that are no entry of the directory; no entry has a slash in its name.
const (
	tagPath = "/path"
	tagDir  = "/dir"
)

// identity tells one state of a file from the next.
type identity struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
	mode, uid    uint32
}

func statID(st *unix.Stat_t) identity {
	return identity{dev: st.Dev, ino: st.Ino, size: st.Size, mtime: st.Mtim, ctime: st.Ctim, mode: st.Mode, uid: st.Uid}
}

// ignoredName tells the names that editors and package managers give to what is not the file itself. Hidden entries are
// kubelet's way to keep a ConfigMap's versions out of sight.
func ignoredName(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#") {
		return true
	}
	for _, s := range []string{"~", ".swp", ".swo", ".swx", ".tmp", ".bak", ".orig", ".rej", ".dpkg-old", ".dpkg-new", ".dpkg-dist", ".rpmsave", ".rpmnew"} {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return false
}

// oddName tells names that are read like any other, but only when they are there to stay.
func oddName(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return false
	}
	return true
}

// resolve finds out where the directory is now and watches the way there.
func (s *Source) resolve() {
	steps, dir, ok := trail(s.cfg.Dir, maskEntries|maskSelf)
	// Watching comes after looking, so a change between the two would go unseen: look again until nothing changed.
	fresh := false
	for range 10 {
		fresh = s.watchPath(steps, ok) || fresh
		again, dir2, ok2 := trail(s.cfg.Dir, maskEntries|maskSelf)
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
		s.dir, s.dirID = "", identity{}
		s.setProblems("", []Problem{{File: s.cfg.Dir, Errors: []string{problem}}})
		return
	}
	id := identity{dev: st.Dev, ino: st.Ino}
	// A new directory may have the inode number of the one that went, but not its watch.
	if s.dir == dir && s.dirID == id && !fresh {
		return
	}
	s.dir, s.dirID = dir, id
	if s.began {
		s.scan(false)
		s.goneAt = time.Now().Add(goneReturned)
		s.goneMax = s.goneAt
	}
}

// watchPath watches the way to the directory, and says whether the directory itself is one that was not watched before.
func (s *Source) watchPath(steps []step, ok bool) bool {
	if s.watch == nil {
		return false
	}
	way, end := steps, []step(nil)
	if ok {
		way, end = steps[:len(steps)-1], steps[len(steps)-1:]
	}
	_, err := s.watch.set(tagPath, way)
	fresh, e := s.watch.set(tagDir, end)
	if err = errors.Join(err, e); err != nil {
		s.log.Warn("changes of manifests are noticed only by the rescan", "dir", s.cfg.Dir, "error", err)
	}
	return fresh
}

// handle acts upon one read of the watcher.
func (s *Source) handle(data []byte) {
	events, overflow := s.watch.parse(data)
	resolve := overflow
	for _, e := range events {
		switch {
		case e.tag == tagPath:
			resolve = true
		case e.tag != tagDir:
			s.touch(e.tag)
		case e.name == "":
			resolve = true
		default:
			s.entry(e)
		}
	}
	if resolve {
		s.resolve()
	}
	if overflow {
		s.log.Warn("the kernel dropped notifications, so all manifests are looked at", "dir", s.cfg.Dir)
		s.scan(false)
	}
}

// entry acts upon what happened to one entry of the directory.
func (s *Source) entry(e event) {
	switch {
	case ignoredName(e.name):
	case e.mask&(unix.IN_MOVED_FROM|unix.IN_DELETE) != 0:
		delete(s.later, e.name)
		s.vanish(e.name, s.quietAfter(e.mask))
	case e.mask&unix.IN_ATTRIB != 0 && s.files[e.name] != nil:
		s.touch(e.name) // its mode says whether it may hold Secrets
	case e.mask&(unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO|unix.IN_CREATE) == 0:
	case oddName(e.name) && s.files[e.name] == nil:
		s.later[e.name] = time.Now().Add(oddDelay)
	default:
		s.touch(e.name)
	}
}

// touch puts a file on the list of those to read.
func (s *Source) touch(name string) {
	delete(s.later, name)
	if !slices.Contains(s.todo, name) {
		s.todo = append(s.todo, name)
	}
}

// quietAfter is how long a file that goes may take to come back.
func (s *Source) quietAfter(mask uint32) time.Duration {
	switch {
	case s.cfg.Quiet > 0:
		return s.cfg.Quiet
	case mask&unix.IN_MOVED_FROM != 0:
		return renamedQuiet
	}
	return removedQuiet
}

// vanish notes that a file went, to be acted upon when no more do.
func (s *Source) vanish(name string, quiet time.Duration) {
	if s.files[name] == nil {
		return
	}
	now := time.Now()
	if len(s.gone) == 0 {
		s.goneMax = now.Add(max(goneLimit, quiet))
		s.goneAt = now
	}
	s.gone[name] = true
	if t := now.Add(quiet); t.After(s.goneAt) {
		s.goneAt = t
	}
	if s.goneAt.After(s.goneMax) {
		s.goneAt = s.goneMax
	}
}

// settleGone acts upon what is due: files that are gone for good, and odd ones that are there to stay.
func (s *Source) settleGone(now time.Time) {
	for name, t := range s.later {
		if !now.Before(t) {
			s.touch(name)
		}
	}
	if len(s.gone) == 0 || now.Before(s.goneAt) {
		return
	}
	// The files of a directory go before it does; whether it is still there decides what that meant.
	s.resolve()
	if now.Before(s.goneAt) {
		return
	}
	gone := s.gone
	s.gone = map[string]bool{}
	if s.dir == "" {
		return
	}
	for name := range gone {
		if _, err := os.Lstat(filepath.Join(s.dir, name)); err == nil {
			s.touch(name)
		} else if os.IsNotExist(err) {
			s.drop(name)
		}
	}
}

// scan compares the directory with what is known of it. A check is a scan that should find nothing.
func (s *Source) scan(check bool) {
	if s.dir == "" {
		return
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		s.setProblems("", []Problem{{File: s.cfg.Dir, Errors: []string{fmt.Sprintf("cannot be read (pods that run are left running): %v", err)}}})
		return
	}
	s.setProblems("", nil)
	type found struct {
		name string
		at   unix.Timespec
	}
	var changed []found
	there := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if ignoredName(name) {
			continue
		}
		there[name] = true
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(s.dir, name), &st); err != nil {
			st = unix.Stat_t{}
		}
		known := s.files[name]
		if known != nil && known.id == statID(&st) || !s.later[name].IsZero() {
			continue
		}
		if check && known != nil {
			s.miss("changed", name)
		} else if check {
			s.miss("new", name)
		}
		changed = append(changed, found{name, st.Mtim})
	}
	// Of two files that claim one pod the older one came first.
	slices.SortStableFunc(changed, func(a, b found) int {
		if d := unix.TimespecToNsec(a.at) - unix.TimespecToNsec(b.at); d != 0 {
			return int(min(1, max(-1, d)))
		}
		return strings.Compare(a.name, b.name)
	})
	for _, f := range changed {
		s.touch(f.name)
	}
	for name := range s.files {
		if !there[name] && !s.gone[name] && name != s.cfg.URL {
			if check {
				s.miss("gone", name)
			}
			s.vanish(name, s.quietAfter(unix.IN_MOVED_FROM))
		}
	}
}

func (s *Source) miss(what, name string) {
	if slices.Contains(s.todo, name) {
		return
	}
	s.missed.Add(1)
	s.log.Warn("rescan found a change without a notification", "file", filepath.Join(s.cfg.Dir, name), "change", what)
}
