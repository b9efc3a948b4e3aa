package oci

import (
	"path"
	"strings"
)

// scopePrefix is how systemd's scopes of ours begin; what follows is the ID.
const scopePrefix = "cri-berth"

// CgroupPath is the cgroup of a sandbox or container under its pod's parent. A parent in systemd's notation
// ("kubepods-pod1.slice") names its ancestors by its prefixes; the leaf then is a scope.
func CgroupPath(parent, id string) string {
	base := path.Base(parent)
	stem, ok := strings.CutSuffix(base, ".slice")
	if !ok {
		return path.Join("/", parent, id)
	}
	leaf := scopePrefix + "-" + id + ".scope"
	if strings.Contains(strings.Trim(parent, "/"), "/") || stem == "-" || stem == "" {
		return path.Join("/", strings.TrimSuffix(parent, "-.slice"), leaf)
	}
	dir, prefix := "/", ""
	for part := range strings.SplitSeq(stem, "-") {
		prefix += part
		dir = path.Join(dir, prefix+".slice")
		prefix += "-"
	}
	return path.Join(dir, leaf)
}

// UnitPath says a path of [CgroupPath] as the runtime specification names a unit of systemd: slice:prefix:name. ok is
// false for what is not a scope of ours.
func UnitPath(cgroup string) (unit string, ok bool) {
	id, isScope := strings.CutSuffix(path.Base(cgroup), ".scope")
	id, ours := strings.CutPrefix(id, scopePrefix+"-")
	if !isScope || !ours {
		return "", false
	}
	slice := path.Base(path.Dir(cgroup))
	if !strings.HasSuffix(slice, ".slice") {
		slice = "-.slice"
	}
	return slice + ":" + scopePrefix + ":" + id, true
}

// KernelPath is the cgroup of a specification's cgroupsPath, in either notation.
func KernelPath(cgroupsPath string) string {
	if parts := strings.Split(cgroupsPath, ":"); len(parts) == 3 && !strings.HasPrefix(cgroupsPath, "/") {
		return CgroupPath(parts[0], parts[2])
	}
	return cgroupsPath
}
