package charge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

const mib = 1 << 20

// group are the files of a group.
type group struct{ usage, anon, cache, kernel int64 }

func (g group) write(t *testing.T, dir string, v1 bool) {
	t.Helper()
	files := map[string]string{
		"memory.current": fmt.Sprintln(g.usage), "memory.max": "max\n",
		"memory.stat": fmt.Sprintf("anon %d\nfile %d\nkernel %d\ninactive_file %d\nactive_file %d\n", g.anon, g.cache, g.kernel,
			g.cache/4, g.cache-g.cache/4),
	}
	if v1 {
		files = map[string]string{
			"memory.usage_in_bytes": fmt.Sprintln(g.usage), "memory.kmem.usage_in_bytes": fmt.Sprintln(g.kernel),
			"memory.stat": fmt.Sprintf("cache 1\nrss 1\ninactive_file 1\nactive_file 1\nhierarchical_memory_limit 9223372036854771712\n"+
				"total_cache %d\ntotal_rss %d\ntotal_inactive_file %d\ntotal_active_file %d\n", g.cache, g.anon, g.cache/4, g.cache-g.cache/4),
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRead has groups that know less than those below them, as the kernel leaves them for a while.
func TestRead(t *testing.T) {
	for name, c := range map[string]struct {
		groups        map[string]group
		unreclaimable int64
		doubt         int64
	}{
		"settled": {
			map[string]group{".": {400 * mib, 90 * mib, 300 * mib, 10 * mib}, "pod": {400 * mib, 0, 399 * mib, 0}},
			100 * mib, 0,
		},
		"a container knows of its cache": {
			map[string]group{
				".": {400 * mib, 50 * mib, 100 * mib, 10 * mib}, "class": {390 * mib, 0, 0, 0},
				"class/pod": {390 * mib, 40 * mib, 90 * mib, 5 * mib}, "class/pod/c": {390 * mib, 85 * mib, 295 * mib, 10 * mib},
				"class/other": {5 * mib, 5 * mib, 0, 0},
			},
			105 * mib, 0,
		},
		"a container knows of its own memory": {
			map[string]group{".": {400 * mib, 50 * mib, 100 * mib, 10 * mib}, "pod": {400 * mib, 300 * mib, 90 * mib, 10 * mib}},
			310 * mib, 0,
		},
		"nobody knows": {
			map[string]group{".": {400 * mib, 50 * mib, 100 * mib, 10 * mib}, "pod": {400 * mib, 40 * mib, 100 * mib, 10 * mib}},
			300 * mib, 240 * mib,
		},
		"too deep": {
			map[string]group{
				".": {400 * mib, 0, 0, 0}, "1": {400 * mib, 0, 0, 0}, "1/2": {400 * mib, 0, 0, 0}, "1/2/3": {400 * mib, 0, 0, 0},
				"1/2/3/4": {400 * mib, 0, 400 * mib, 0},
			},
			400 * mib, 400 * mib,
		},
	} {
		for version, v1 := range map[string]bool{"v1": true, "v2": false} {
			dir := t.TempDir()
			for path, g := range c.groups {
				g.write(t, filepath.Join(dir, path), v1)
			}
			r := reader{left: mostAsked, tolerated: unsettled}
			if m, err := r.read(dir, depth); err != nil || m.Unreclaimable() != c.unreclaimable || m.Doubt != c.doubt {
				t.Errorf("%s, %s: %d with a doubt of %d, %v", name, version, m.Unreclaimable()>>20, m.Doubt>>20, err)
			}
			if version == "v2" {
				if m, err := (&reader{tolerated: unsettled}).read(dir, depth); err != nil || m.Unreclaimable() < c.unreclaimable && m.Doubt == 0 {
					t.Errorf("%s: when nobody may be asked: %+v, %v", name, m, err)
				}
			}
		}
	}
}

// TestReadOddly has the root of version 2, which has no usage, and groups that are not there or not whole.
func TestReadOddly(t *testing.T) {
	dir := t.TempDir()
	if _, err := Read(dir + "/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that is not there: %v", err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("memory.stat", "anon 3000\nfile 4000\ninactive_file 2000\nactive_file 1000\n")
	if m, limit, err := ReadLimited(dir); err != nil || m.Usage != 7000 || m.WorkingSet() != 5000 || limit != Unlimited {
		t.Errorf("the root of version 2: %+v, %v", m, err)
	}
	write("memory.current", "?\n")
	if _, err := Read(dir); err == nil {
		t.Error("a usage that is no number is taken")
	}
	write("memory.current", "1\n")
	write("memory.max", "?\n")
	if _, _, err := ReadLimited(dir); err == nil {
		t.Error("a limit that is no number is taken")
	}
}

// FuzzRead: whatever the files of a group say, what is computed from them is in bounds.
func FuzzRead(f *testing.F) {
	f.Add("hierarchical_memory_limit 800000000\ntotal_inactive_file 100000000\ntotal_rss 5\n", "500000000\n", "", true)
	f.Add("anon 300000000\ninactive_file 100000000\nslab_reclaimable 7000000\nkernel max\n", "500000000\n", "max\n", false)
	f.Add("total_cache 9223372036854775807\ntotal_rss 9223372036854775807\nactive_file -1\n", "max", "-1", true)
	f.Fuzz(func(t *testing.T, stat, usage, limit string, v1 bool) {
		dir := t.TempDir()
		file := "memory.current"
		if v1 {
			file = "memory.usage_in_bytes"
		}
		for name, text := range map[string]string{"memory.stat": stat, file: usage, "memory.max": limit} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, most, err := ReadLimited(dir)
		if err == nil && (most < 0 || m.Unreclaimable() < 0 || m.WorkingSet() < 0 || m.Doubt < 0 || m.Unreclaimable() > max(m.Usage, 0)) {
			t.Errorf("%+v", m)
		}
	})
}
