package directory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// scan compares the directory with what is known of it. A check is a scan that should find nothing.
func (d *Directory) scan(check bool) {
	if d.dir == "" {
		return
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		d.cfg.Files.Directory(fmt.Errorf("cannot be read (pods that run are left running): %w", err))
		return
	}
	d.cfg.Files.Directory(nil)
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
		if err := unix.Stat(filepath.Join(d.dir, name), &st); err != nil {
			st = unix.Stat_t{}
		}
		known, old := d.known[name]
		if old && known == statID(&st) || !d.later[name].IsZero() {
			continue
		}
		if check && old {
			d.miss("changed", name)
		} else if check {
			d.miss("new", name)
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
		d.touch(f.name)
	}
	for name := range d.known {
		if !there[name] && !d.gone.names[name] {
			if check {
				d.miss("gone", name)
			}
			d.vanish(name, d.cfg.quietAfter(unix.IN_MOVED_FROM))
		}
	}
}

func (d *Directory) miss(what, name string) {
	if slices.Contains(d.todo, name) {
		return
	}
	d.missed.Add(1)
	d.cfg.Log.Warn("rescan found a change without a notification", "file", filepath.Join(d.cfg.Dir, name), "change", what)
}
