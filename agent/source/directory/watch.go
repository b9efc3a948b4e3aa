package directory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// A file is read when its writer closes it, not at each write: half a manifest may be a valid one.
	maskEntries = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_CREATE | unix.IN_DELETE
	// maskSelf tells that a path now leads somewhere else. ATTRIB is there for the link count of a replaced symlink.
	maskSelf = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_ATTRIB
	// maskMissing tells that the next step of a path has come into being.
	maskMissing = unix.IN_CREATE | unix.IN_MOVED_TO
	// maskContent is for the target of a symlinked manifest.
	maskContent = unix.IN_CLOSE_WRITE | maskSelf
)

// event is one thing that happened to something that is watched under a tag.
type event struct {
	tag  string
	mask uint32
	name string // of the entry, for events of a directory
}

// watcher is one inotify instance whose watches are grouped by tag, because one inode may be watched for several
// reasons and inotify has but one watch for it. Only the reader uses it from another goroutine, and that only reads the
// descriptor.
type watcher struct {
	file *os.File
	conn func(func(uintptr)) error
	byWD map[int32]map[string]uint32 // tag to mask
}

// step is one inode that decides where a path leads, and the events of it that do.
type step struct {
	path string
	mask uint32
}

func newWatcher() (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create inotify instance: %w", err)
	}
	f := os.NewFile(uintptr(fd), "inotify")
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("create inotify instance: %w", err)
	}
	return &watcher{file: f, conn: raw.Control, byWD: map[int32]map[string]uint32{}}, nil
}

// follow watches where a manifest that is a symlink leads, so that a change of the target or of a link on the way is
// told. One that is no link is not watched; it may have been one if it was known.
func (w *watcher) follow(name, path string, link, known bool) error {
	if !link {
		if known {
			_, _ = w.set(name, nil)
		}
		return nil
	}
	steps, _, ok := trail(path, maskContent)
	for range 10 {
		if _, err := w.set(name, steps); err != nil {
			return err
		}
		again, _, ok2 := trail(path, maskContent)
		if ok == ok2 && slices.Equal(steps, again) {
			return nil
		}
		steps, ok = again, ok2
	}
	return nil
}

// set makes steps all that is watched under tag. Steps that are gone by now are left out: who called looks at the path
// again. fresh says that there is an inode among them that was not watched under it before; numbers of watches are not
// used again, as those of inodes are.
func (w *watcher) set(tag string, steps []step) (fresh bool, failed error) {
	want := map[int32]uint32{}
	for _, s := range steps {
		wd, err := w.add(s.path, s.mask)
		if err != nil {
			if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) {
				failed = fmt.Errorf("watch %s: %w", s.path, err)
			}
			continue
		}
		want[wd] |= s.mask
	}
	for wd, tags := range w.byWD {
		if _, keep := want[wd]; !keep && tags[tag] != 0 {
			delete(tags, tag)
			if len(tags) == 0 {
				w.remove(wd)
			}
		}
	}
	for wd, mask := range want {
		if w.byWD[wd] == nil {
			w.byWD[wd] = map[string]uint32{}
		}
		fresh = fresh || w.byWD[wd][tag] == 0
		w.byWD[wd][tag] = mask
	}
	return fresh, failed
}

func (w *watcher) add(path string, mask uint32) (wd int32, err error) {
	e := w.conn(func(fd uintptr) {
		var n int
		n, err = unix.InotifyAddWatch(int(fd), path, mask|unix.IN_MASK_ADD|unix.IN_DONT_FOLLOW)
		wd = int32(n)
	})
	return wd, errors.Join(e, err)
}

func (w *watcher) remove(wd int32) {
	delete(w.byWD, wd)
	// It fails when the inode is gone, and its watch with it.
	_ = w.conn(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) })
}

// read sends what the kernel reports until the watcher is closed.
func (w *watcher) read(out chan<- []byte, done <-chan struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			return
		}
		select {
		case out <- append([]byte(nil), buf[:n]...):
		case <-done:
			return
		}
	}
}

// parse turns what read sent into events; overflow says that the kernel had to drop some.
func (w *watcher) parse(data []byte) (events []event, overflow bool) {
	for len(data) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(data))
		mask := binary.NativeEndian.Uint32(data[4:])
		size := int(binary.NativeEndian.Uint32(data[12:]))
		name := strings.TrimRight(string(data[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+size]), "\x00")
		data = data[unix.SizeofInotifyEvent+size:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			overflow = true
			continue
		}
		for tag, wanted := range w.byWD[wd] {
			if mask&(wanted|unix.IN_IGNORED|unix.IN_UNMOUNT) != 0 {
				events = append(events, event{tag: tag, mask: mask, name: name})
			}
		}
		if mask&unix.IN_IGNORED != 0 {
			delete(w.byWD, wd)
		}
	}
	return events, overflow
}

// maxLinks is how many symlinks the kernel follows before it gives up.
const maxLinks = 40

// trail walks path as the kernel does and returns each step that may change where it leads, with last as the mask of
// its end. ok is false when the path leads nowhere; then the last step is the directory the missing one would appear
// in.
func trail(path string, last uint32) (steps []step, target string, ok bool) {
	rest := strings.Split(filepath.Clean(path), "/")
	at, links := "/", 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		info, err := os.Lstat(next)
		if err != nil {
			return append(steps, step{at, maskMissing}, step{at, maskSelf}), "", false
		}
		if info.Mode()&os.ModeSymlink == 0 {
			at = next
			if len(rest) > 0 {
				// The times and modes of the directories on the way are nobody's concern.
				steps = append(steps, step{at, maskSelf &^ unix.IN_ATTRIB})
			}
			continue
		}
		steps = append(steps, step{next, maskSelf})
		to, err := os.Readlink(next)
		if links++; err != nil || links > maxLinks {
			return steps, "", false
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		// Not cleaned: "a/.." is not "." when a is a symlink.
		rest = append(strings.Split(to, "/"), rest...)
	}
	return append(steps, step{at, last}), at, true
}
