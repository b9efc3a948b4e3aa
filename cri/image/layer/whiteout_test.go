package layer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/imagetest"
	"github.com/berth-node/berth/cri/snapshot"
)

// stack writes layers each into a directory of its own, as for OverlayFS, and returns the mounted whole.
func stack(t *testing.T, layers []files) string {
	t.Helper()
	root := t.TempDir()
	var below []string
	for i, l := range layers {
		dir := filepath.Join(root, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		res, err := apply(t, dir, snapshot.WhiteoutsOverlay, imagetest.Tar(l))
		if err != nil {
			t.Fatal(err)
		}
		if err := Adopt(dir, res.Result, below); err != nil {
			t.Fatal(err)
		}
		below = append([]string{dir}, below...)
	}
	merged := filepath.Join(root, "merged")
	empty := filepath.Join(root, "empty") // an overlay wants two directories at least
	for _, d := range []string{merged, empty} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	opts := "lowerdir=" + strings.Join(append(below, empty), ":")
	if err := unix.Mount("overlay", merged, "overlay", unix.MS_RDONLY, opts); err != nil {
		t.Skipf("needs overlay mounts: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return merged
}

// pile writes layers into one directory.
func pile(t *testing.T, layers []files) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // as the snapshotter makes it
		t.Fatal(err)
	}
	for _, l := range layers {
		if _, err := apply(t, dir, snapshot.WhiteoutsApply, imagetest.Tar(l)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestWhiteouts(t *testing.T) {
	needRoot(t)
	base := files{
		{Name: "a/"},
		{Name: "a/b", Body: "b"},
		{Name: "a/c/d", Body: "d"},
		{Name: "e", Body: "e"},
		{Name: "tmp/", Mode: 0o1777, UID: 3},
	}
	for name, c := range map[string]struct {
		layers []files
		want   string // names that are left
	}{
		"file":      {[]files{base, {{Name: "a/.wh.b"}}}, "a a/c a/c/d e tmp"},
		"directory": {[]files{base, {{Name: ".wh.a"}}}, "e tmp"},
		"absent":    {[]files{base, {{Name: ".wh.x"}}}, "a a/b a/c a/c/d e tmp"},
		"opaque": {
			[]files{base, {{Name: "a/"}, {Name: "a/.wh..wh..opq"}, {Name: "a/n", Body: "n"}}}, "a a/n e tmp",
		},
		"opaque last": {
			[]files{base, {{Name: "a/n", Body: "n"}, {Name: "a/c/n/o", Body: "o"}, {Name: "a/.wh..wh..opq"}}},
			"a a/c a/c/n a/c/n/o a/n e tmp",
		},
		"opaque root":      {[]files{base, {{Name: "n", Body: "n"}, {Name: ".wh..wh..opq"}}}, "n"},
		"replaced by file": {[]files{base, {{Name: ".wh.a"}, {Name: "a", Body: "f"}}}, "a e tmp"},
		"file stays before deletion": {
			[]files{base, {{Name: "e", Body: "new"}, {Name: ".wh.e"}}}, "a a/b a/c a/c/d e tmp",
		},
		"directory again": {
			[]files{base, {{Name: ".wh.a"}, {Name: "a/"}, {Name: "a/n", Body: "n"}}}, "a a/n e tmp",
		},
		"directory again, implied": {
			[]files{base, {{Name: ".wh.a"}, {Name: "a/n/o", Body: "n"}}}, "a a/n a/n/o e tmp",
		},
		"directory again, before": {[]files{base, {{Name: "a/n", Body: "n"}, {Name: ".wh.a"}}}, "a a/n e tmp"},
		"twice":                   {[]files{base, {{Name: ".wh.a"}, {Name: ".wh.a"}}}, "e tmp"},
		"aufs": {
			[]files{base, {{Name: ".wh..wh.plnk/"}, {Name: ".wh..wh.aufs"}}}, "a a/b a/c a/c/d e tmp",
		},
		"deleted and back":           {[]files{base, {{Name: ".wh.a"}}, {{Name: "a/n", Body: "n"}}}, "a a/n e tmp"},
		"implied keeps its metadata": {[]files{base, {{Name: "tmp/f", Body: "f"}}}, "a a/b a/c a/c/d e tmp tmp/f"},
	} {
		t.Run(name, func(t *testing.T) {
			over, plain := describe(t, stack(t, c.layers), false), describe(t, pile(t, c.layers), false)
			same(t, plain, over)
			var left []string
			for n := range plain {
				if n != "." {
					left = append(left, n)
				}
			}
			slices.Sort(left)
			if got := strings.Join(left, " "); got != c.want {
				t.Errorf("left is %q, want %q", got, c.want)
			}
		})
	}
}

// TestBothWays lets chance make layers, and holds what OverlayFS shows of them against doing all of it in one
// directory.
func TestBothWays(t *testing.T) {
	needRoot(t)
	for seed := range uint64(80) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var layers []files
		for range 1 + rnd.IntN(4) {
			layers = append(layers, chance(rnd))
		}
		ok := t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					for i, l := range layers {
						for _, f := range l {
							t.Logf("layer %d: %s %q", i, f.Name, f.Body)
						}
					}
				}
			})
			same(t, describe(t, pile(t, layers), false), describe(t, stack(t, layers), false))
		})
		if !ok {
			return
		}
	}
}

func chance(rnd *rand.Rand) files {
	name := func() string {
		var parts []string
		for range 1 + rnd.IntN(3) {
			parts = append(parts, string(rune('a'+rnd.IntN(3))))
		}
		return strings.Join(parts, "/")
	}
	kinds := map[string]bool{} // in one layer, what has files in it stays a directory
	isDir := func(n string) bool {
		for k, dir := range kinds {
			if !dir && strings.HasPrefix(n, k+"/") || strings.HasPrefix(k, n+"/") {
				return true
			}
		}
		return false
	}
	var all files
	for range 1 + rnd.IntN(8) {
		n := name()
		switch rnd.IntN(6) {
		case 0:
			up := filepath.Dir(n)
			if dir, ok := kinds[up]; up != "." && (ok && !dir || isDir(n) && !kinds[up]) {
				continue
			} else if up != "." {
				kinds[up] = true
			}
			all = append(all, imagetest.File{Name: filepath.Join(filepath.Dir(n), ".wh."+filepath.Base(n))})
		case 1:
			if isDir(n+"/x") && !kinds[n] {
				continue
			}
			all = append(all, imagetest.File{Name: n + "/.wh..wh..opq"})
			kinds[n] = true
		case 2:
			if dir, ok := kinds[n]; ok && !dir || isDir(n) && !kinds[n] {
				continue
			}
			all = append(all, imagetest.File{Name: n + "/", Mode: int64(0o700 + rnd.IntN(8)), UID: rnd.IntN(3)})
			kinds[n] = true
		default:
			if _, ok := kinds[n]; ok || isDir(n) {
				continue
			}
			all = append(all, imagetest.File{Name: n, Body: fmt.Sprint(rnd.IntN(100)), Mode: 0o600})
			kinds[n] = false
		}
	}
	return all
}
