package inspect

import (
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/berth-node/berth/cgroups"
)

// need is what a command needs of the machine: with a hundred pods there are forty thousand files, and many of them
// cost the kernel a walk over CPUs or groups.
type need struct {
	whole bool // every file, as a capture has them
	// files are those that are read of a group, by name; those of the v2 side of a hybrid machine too, where v1 has no
	// such file, or with "unified/" before it.
	files map[string]bool
	// of narrows s.Groups, once they have names, to those that are read; true: nothing else is asked for.
	of func(s *Snapshot) (bool, error)
	// each says which of files are read of each group, once groups have names; nil: all.
	each func(s *Snapshot) map[string]map[string]bool
	// others are files of pods' groups that of has left out. Of these groups and their containers the processes are
	// read too.
	others     map[string]bool
	pids       bool
	processes  bool // and what the kernel says of each
	everywhere bool // each hierarchy is looked at, for groups that are not in all, and their inodes
	partial    bool // and those that are not in the hierarchy of memory, which everywhere shows
	search     bool // there are some of these, which are looked for
	above      bool // the limits of the groups that those of all pods are in
	kills      bool // those in the kernel's log
	unmeasured bool // no figures are worked out
	nameOnly   bool // of the pods themselves no more is asked for than their names
	// skip says of a file that it would tell nothing, by those of the group that were read before; nil: of none.
	skip func(g Group, file string) bool
}

// usageFiles are the files of all figures.
var usageFiles = sync.OnceValue(func() map[string]bool {
	out := map[string]bool{}
	for _, m := range []cgroups.Mode{cgroups.Legacy, cgroups.Unified} {
		_, _ = cgroups.ParseUsage(m, func(_, file string) []byte {
			out[file] = true
			return nil
		})
	}
	return out
})

// addUsage adds the files that figures are made of, of all of them without names.
func (n *need) addUsage(figures ...string) {
	n.unmeasured = false
	if n.files == nil {
		n.files = map[string]bool{}
	}
	if len(figures) == 0 {
		maps.Copy(n.files, usageFiles())
	}
	for _, f := range figures {
		for _, file := range filesOf(f) {
			n.files[file] = true
		}
	}
}

// filesOf are the files that a computed figure is made of, of both versions.
func filesOf(figure string) []string {
	switch figure {
	case "cpu":
		return []string{"cpuacct.usage", "cpu.stat"}
	case "user":
		return []string{"cpuacct.usage_user", "cpu.stat"}
	case "system":
		return []string{"cpuacct.usage_sys", "cpu.stat"}
	case "throttledtime", "throttled":
		return []string{"cpu.stat"}
	case "quota":
		return []string{"cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.max"}
	case "memory":
		return []string{"memory.usage_in_bytes", "memory.current"}
	case "rss", "cache", "majfaults":
		return []string{"memory.stat"}
	case "workingset":
		return []string{"memory.usage_in_bytes", "memory.current", "memory.stat"}
	case "available":
		return []string{"memory.usage_in_bytes", "memory.current", "memory.stat", "memory.limit_in_bytes", "memory.max"}
	case "swap":
		return []string{"memory.stat", "memory.swap.current"}
	case "pids":
		return []string{"pids.current"}
	case "read", "write":
		return []string{"blkio.throttle.io_service_bytes_recursive", "io.stat"}
	case "reads", "writes":
		return []string{"blkio.throttle.io_serviced_recursive", "io.stat"}
	case "oom":
		return []string{"memory.oom_control", "memory.events"}
	case "procs":
		return nil
	}
	return slices.Collect(maps.Keys(usageFiles())) // what is made of many
}

// periodFile has the period of a quota, and the same where there is no quota.
const periodFile = "cpu.cfs_period_us"

// columnsNeed is what columns are made of.
func columnsNeed(cols []Column) need {
	n := need{files: map[string]bool{}, nameOnly: true}
	asked := map[string]bool{} // as it is
	n.skip = func(g Group, file string) bool {
		return file == periodFile && !asked[file] && strings.HasPrefix(g.Files["cpu.cfs_quota_us"], "-")
	}
	for _, c := range cols {
		for _, expr := range []string{c.Value, c.V1, c.V2} {
			if name, ok := strings.CutPrefix(expr, "="); ok {
				n.pids = n.pids || name == "procs"
				n.addUsage(name)
				continue
			}
			file := expr
			if i := strings.IndexAny(file, ":#"); i >= 0 {
				file = file[:i]
			}
			n.files[file], asked[file] = true, true
		}
	}
	return n
}

// settingsNeed is what is compared with specifications.
func settingsNeed() need {
	n := need{files: map[string]bool{}, pids: true, above: true, unmeasured: true}
	for _, m := range []cgroups.Mode{cgroups.Legacy, cgroups.Unified} {
		for _, f := range settingFiles(m) {
			n.files[f] = true
		}
	}
	for _, size := range []string{"64KB", "2MB", "32MB", "512MB", "1GB", "16GB"} {
		n.files["hugetlb."+size+".max"], n.files["hugetlb."+size+".limit_in_bytes"] = true, true
	}
	for _, f := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus"} {
		n.files[f] = true
	}
	return n
}

// layout is which files are read in which hierarchy, in the order of [cgroups.Hierarchy.Dirs]. What a group has its
// parent has too.
type layout [][]string

func layoutOf(h *cgroups.Hierarchy, path string, files map[string]bool) layout {
	var out layout
	had := map[string]bool{}
	for _, dir := range h.Dirs(path) {
		beside := h.Mode() == cgroups.Hybrid && dir == h.Dir("", path)
		var names []string
		entries, err := os.ReadDir(dir)
		if err == nil {
			for _, e := range entries {
				name := e.Name()
				wanted := files[name] && !(beside && had[name]) || beside && files["unified/"+name]
				if wanted && !skipped(name) {
					names = append(names, name)
					had[name] = true
				}
			}
		}
		if i := slices.Index(names, periodFile); i >= 0 {
			names = append(slices.Delete(names, i, i+1), periodFile) // after the quota
		}
		out = append(out, names)
	}
	return out
}

// at are the files of a hierarchy; of no layout there are none.
func (l layout) at(i int) []string {
	if l == nil {
		return nil
	}
	return l[i]
}
