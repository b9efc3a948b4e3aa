package cgroups

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mount is one cgroup file system seen in mountinfo.
type mount struct {
	dir         string
	root        string // which part of the hierarchy is mounted; "/" unless bind-mounted or in a cgroup namespace
	unified     bool
	controllers []string // v1 only; a named hierarchy is "name=..."
}

// parseMountinfo returns the cgroup mounts at or below base.
func parseMountinfo(r io.Reader, base string) ([]mount, error) {
	infos, err := mountinfo.GetMountsFromReader(r, cgroupMounts(base))
	if err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	var out []mount
	for _, i := range infos {
		m := mount{dir: i.Mountpoint, root: i.Root, unified: i.FSType == "cgroup2"}
		if !m.unified {
			if m.controllers = v1Controllers(i.VFSOptions); len(m.controllers) == 0 {
				continue
			}
		}
		out = append(out, m)
	}
	return out, nil
}

func cgroupMounts(base string) mountinfo.FilterFunc {
	below := strings.TrimSuffix(base, "/") + "/"
	return func(m *mountinfo.Info) (skip, stop bool) {
		cgroup := m.FSType == "cgroup" || m.FSType == "cgroup2"
		return !cgroup || m.Mountpoint != base && !strings.HasPrefix(m.Mountpoint, below), false
	}
}

// v1Controllers picks the controllers out of the super block options, which also carry rw, xattr, release_agent and the
// like.
func v1Controllers(opts string) []string {
	var out []string
	for o := range strings.SplitSeq(opts, ",") {
		switch o {
		case "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc":
			out = append(out, o)
		default:
			if strings.HasPrefix(o, "name=") {
				out = append(out, o)
			}
		}
	}
	return out
}

func readMounts(base string) ([]mount, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("open mountinfo: %w", err)
	}
	// A container is two mounts or more, and to take a line apart costs more than to see that it is of no cgroup.
	var some bytes.Buffer
	for line := range bytes.Lines(data) {
		if bytes.Contains(line, []byte(" - cgroup")) {
			some.Write(line)
		}
	}
	return parseMountinfo(&some, base)
}

// isFS says whether the file system mounted at dir is of this kind. mountinfo alone is not enough: a mount may be
// covered by a later one on the same place.
func isFS(dir string, magic int64) (bool, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("statfs %s: %w", dir, err)
		}
		return int64(st.Type) == magic, nil
	}
}

func clean(path string) string { return filepath.Clean("/" + path) }
