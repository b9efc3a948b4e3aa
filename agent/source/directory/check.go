package directory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ignoredName tells the names that editors and package managers give to what is not the file itself. Hidden entries are
// kubelet's way to keep a ConfigMap's versions out of sight.
func ignoredName(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") && strings.HasSuffix(name, "#") {
		return true
	}
	for _, s := range []string{
		"~", ".swp", ".swo", ".swx", ".tmp", ".bak", ".orig", ".rej", ".dpkg-old", ".dpkg-new",
		".dpkg-dist", ".rpmsave", ".rpmnew",
	} {
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

// check reads one entry and tells what it has.
func (d *Directory) check(name string) {
	if d.dir == "" {
		return
	}
	path := filepath.Join(d.dir, name)
	info, err := os.Lstat(path)
	if os.IsNotExist(err) {
		delete(d.busy, name)
		d.vanish(name, d.cfg.quietAfter(unix.IN_MOVED_FROM))
		d.cfg.Files.Missing(name)
		return
	}
	delete(d.gone.names, name)
	if d.watch != nil {
		link := err == nil && info.Mode()&os.ModeSymlink != 0
		if err := d.watch.follow(name, path, link, d.knows(name)); err != nil {
			d.cfg.Log.Warn("changes of a symlinked manifest are noticed only by the rescan", "file", path, "error", err)
		}
	}
	data, id, err := readManifest(path)
	if errors.Is(err, errBusy) {
		d.waitForWriter(name)
		return
	}
	delete(d.busy, name)
	d.known[name] = id
	if err != nil {
		d.cfg.Files.Unreadable(name, err)
		return
	}
	d.cfg.Files.Content(name, data, id.exposed())
}

// drop forgets a file that is gone for good.
func (d *Directory) drop(name string) {
	if !d.knows(name) {
		return
	}
	delete(d.known, name)
	delete(d.busy, name)
	if d.watch != nil {
		_, _ = d.watch.set(name, nil)
	}
	d.cfg.Files.Removed(name)
}

// busy is a file that is open for writing.
type busy struct {
	since time.Time
	wait  time.Duration
}

// waitForWriter looks at a file again later, and names the writer who never ends.
func (d *Directory) waitForWriter(name string) {
	now := time.Now()
	b, ok := d.busy[name]
	if !ok {
		b = busy{since: now, wait: busyFirst}
	}
	d.later[name] = now.Add(b.wait)
	b.wait = min(2*b.wait, busyMost)
	d.busy[name] = b
	if now.Sub(b.since) < busyTold {
		return
	}
	if !d.knows(name) {
		d.known[name] = identity{} // what is said of it is taken back when it goes
	}
	d.cfg.Files.Unreadable(name, errors.New("not read: another process has it open for writing"))
}
