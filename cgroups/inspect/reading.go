package inspect

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/internal/kernfs"
)

// procsFile has the processes of a group.
const procsFile = "cgroup.procs"

// reading reads what is needed of groups, from the top down: each is found by the open directory of the one that it is
// in.
type reading struct {
	kernfs.Reader
	h      *cgroups.Hierarchy
	s      *Snapshot
	n      need
	memory int                 // the hierarchy that processes are read in
	beside int                 // that of v2 beside those of v1, -1: there is none
	kids   map[string][]string // names of the groups in each

	whole         map[string]Group           // those that are read as a whole
	layout, brief layout                     // of these, and of pods beside them
	only          map[string]map[string]bool // files by group; nil: all of the layout

	below map[string][]int // how many groups more each has than were met there, by hierarchy
}

func newReading(h *cgroups.Hierarchy, s *Snapshot, n need, whole map[string]Group) *reading {
	d := &reading{h: h, s: s, n: n, whole: whole, kids: map[string][]string{}, beside: -1, below: map[string][]int{}}
	for i, dir := range h.Dirs("/") {
		if dir == h.MemoryDir("/") {
			d.memory = i
		}
		if h.Mode() == cgroups.Hybrid && dir == h.Dir("", "/") {
			d.beside = i
		}
	}
	seen := map[string]bool{}
	for p := range s.Groups {
		// A group that is left out may be on the way to one that is not.
		for ; p != "/" && p != "." && !seen[p]; p = filepath.Dir(p) {
			seen[p] = true
			d.kids[filepath.Dir(p)] = append(d.kids[filepath.Dir(p)], filepath.Base(p))
		}
	}
	return d
}

// top reads one of the groups of all pods with all that are in it.
func (d *reading) top(ctx context.Context, path string, l, brief layout) error {
	d.layout, d.brief = l, brief
	var parents []kernfs.Dir
	for _, dir := range d.h.Dirs(filepath.Dir(path)) {
		parents = append(parents, kernfs.OpenDir(dir))
	}
	defer closeAll(parents)
	return d.group(ctx, path, parents)
}

func closeAll(dirs []kernfs.Dir) {
	for _, dir := range dirs {
		dir.Close()
	}
}

// hasMore says whether there are groups that were not met, in a hierarchy that was looked at.
func (d *reading) hasMore() bool {
	for _, more := range d.below {
		if slices.Max(more) > 0 {
			return true
		}
	}
	return false
}

// belowOf are the counts of a group.
func (d *reading) belowOf(path string, hierarchies int) []int {
	counts := d.below[path]
	if counts == nil {
		counts = make([]int, hierarchies)
		d.below[path] = counts
	}
	return counts
}

// fewKids is with how many groups in it one is not worth to be opened.
const fewKids = 4

func (d *reading) group(ctx context.Context, path string, parents []kernfs.Dir) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	files, wanted := d.filesOf(path)
	kids, name := d.kids[path], filepath.Base(path)
	own := make([]kernfs.Dir, len(parents))
	defer closeAll(own)
	for i, in := range parents {
		// That of a group without others is not worth to be opened.
		if len(kids) > 0 && (d.n.everywhere || len(d.layout[i])+len(d.brief.at(i)) > 0 || i == d.memory) {
			if len(kids) <= fewKids {
				own[i] = in.In(name)
			} else {
				own[i] = in.Sub(name)
			}
		}
	}
	if wanted {
		if g, ok := d.read(path, parents, files); ok {
			d.s.Groups[path] = g
			if _, whole := d.whole[path]; d.n.processes {
				readProcesses(&d.Reader, d.s, g.Pids, whole)
			}
		} else {
			delete(d.s.Groups, path)
		}
	}
	for _, kid := range kids {
		if err := d.group(ctx, strings.TrimSuffix(path, "/")+"/"+kid, own); err != nil {
			return err
		}
	}
	return nil
}

// filesOf are the files that are read of a group, by hierarchy; false: it is not read.
func (d *reading) filesOf(path string) (layout, bool) {
	if _, known := d.s.Groups[path]; !known {
		return nil, false
	}
	if _, whole := d.whole[path]; !whole {
		if d.n.others != nil && isPod(path) {
			return d.brief, true
		}
		return nil, d.n.others != nil
	}
	if d.only == nil {
		return d.layout, true
	}
	out := make(layout, len(d.layout))
	for i, names := range d.layout {
		for _, name := range names {
			if d.only[path][name] {
				out[i] = append(out[i], name)
			}
		}
	}
	return out, true
}

// read reads some files of a group; false when it went meanwhile.
func (d *reading) read(path string, parents []kernfs.Dir, files layout) (Group, bool) {
	g, name := Group{Files: map[string]string{}}, filepath.Base(path)
	above := d.s.Groups[filepath.Dir(path)]
	before, inMemory, there := parents[d.memory].Stat(name)
	if !there && !d.n.everywhere {
		return g, false
	}
	g.Inode = before
	var inOwn, inParent []int
	if d.n.everywhere {
		inOwn, inParent = d.belowOf(path, len(parents)), d.belowOf(filepath.Dir(path), len(parents))
	}
	for i, in := range parents {
		if d.n.everywhere {
			ino, below, ok := before, inMemory, there
			if i != d.memory {
				ino, below, ok = in.Stat(name)
			}
			if !ok {
				g.Missing = append(g.Missing, strings.TrimSuffix(d.h.Dirs(path)[i], path))
				continue
			}
			g.Inodes = append(g.Inodes, ino)
			inOwn[i] += below
			inParent[i]--
		}
		own, prefix := in.In(name), ""
		if i == d.beside {
			prefix = "unified/"
		}
		for _, file := range files.at(i) {
			if d.n.skip != nil && d.n.skip(g, file) {
				continue
			}
			if text, read := above.Files[prefix+file]; read && still(file, text) {
				g.Files[prefix+file] = text
				continue
			}
			if text, err := d.ReadAt(own, file); err == nil {
				g.Files[prefix+file] = text
			}
		}
	}
	if d.n.pids && (d.only == nil || d.only[path][procsFile]) {
		if data, err := d.ReadAllAt(parents[d.memory], name+"/"+procsFile); err == nil {
			g.Pids = cgroups.ParsePids(data)
			slices.Sort(g.Pids)
		}
	}
	after, _, _ := parents[d.memory].Stat(name)
	return g, after == before && len(g.Missing) < len(parents)
}

// still says of a file whose counters are those of all groups below, too, that none has counted anything: then the file
// of each of these groups is the same, and need not be read.
func still(file, text string) bool {
	switch file {
	case "cpu.pressure", "memory.pressure", "io.pressure":
		for line := range strings.Lines(text) {
			if !strings.HasSuffix(strings.TrimSpace(line), " total=0") {
				return false
			}
		}
		return true
	case "blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_serviced_recursive":
		return strings.TrimSpace(text) == "Total 0"
	case "io.stat":
		return strings.TrimSpace(text) == ""
	}
	return false
}
