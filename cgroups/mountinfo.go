package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is one cgroup file system seen in mountinfo.
type mount struct {
	dir         string
	root        string // which part of the hierarchy is mounted; "/" unless bind-mounted or in a cgroup namespace
	unified     bool
	controllers []string // v1 only; a named hierarchy is "name=..."
}

// parseMountinfo returns the cgroup mounts at or below base, first mount of a place last seen wins as in the kernel.
//
// A line is: ID parent major:minor root mountpoint options [optional...] - fstype source superoptions
// The optional fields vary in number, so the second half is found behind the " - ".
func parseMountinfo(r io.Reader, base string) ([]mount, error) {
	var out []mount
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		head, tail, ok := strings.Cut(sc.Text(), " - ")
		if !ok {
			continue
		}
		hf, tf := strings.Fields(head), strings.Fields(tail)
		if len(hf) < 6 || len(tf) < 3 {
			continue
		}
		if tf[0] != "cgroup" && tf[0] != "cgroup2" {
			continue
		}
		dir := unescape(hf[4])
		if dir != base && !strings.HasPrefix(dir, strings.TrimSuffix(base, "/")+"/") {
			continue
		}
		m := mount{dir: dir, root: unescape(hf[3]), unified: tf[0] == "cgroup2"}
		if !m.unified {
			m.controllers = v1Controllers(tf[2])
			if len(m.controllers) == 0 {
				continue
			}
		}
		out = append(out, m)
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("read mountinfo: %w", err)
	}
	return out, nil
}

// v1Controllers picks the controllers out of the super block options, which also carry rw, xattr, release_agent and the like.
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

// unescape undoes the octal escapes mountinfo uses for space, tab, newline and backslash.
func unescape(s string) string {
	if !strings.ContainsRune(s, '\\') {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && isOctal(s[i+1]) && isOctal(s[i+2]) && isOctal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(c byte) bool { return c >= '0' && c <= '7' }

func readMounts(base string) ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("open mountinfo: %w", err)
	}
	defer f.Close()
	return parseMountinfo(f, base)
}

// isFS says whether the file system mounted at dir is of this kind. mountinfo alone is not enough: a mount may be covered by
// a later one on the same place.
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
