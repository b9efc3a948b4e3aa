package cgroups

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestThawTree has groups in each other and beside each other, each frozen, and looks at each. With a bound it looks at
// no more.
func TestThawTree(t *testing.T) {
	for name, most := range map[string]int{"all": maxThawed, "three": 3} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			var groups []string
			group := func(dir string) string {
				for file, text := range map[string]string{"freezer.self_freezing": "1\n", "freezer.state": "FROZEN\n"} {
					if err := os.MkdirAll(dir, 0o700); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				groups = append(groups, dir)
				return dir
			}
			dir := group(top)
			for i := range 200 {
				group(filepath.Join(top, "beside"+strconv.Itoa(i)))
				dir = group(filepath.Join(dir, "d"))
			}
			thawTree(top, most)
			thawed := 0
			for _, g := range groups {
				b, err := os.ReadFile(filepath.Join(g, "freezer.state"))
				if err != nil {
					t.Fatal(err)
				}
				if string(b[:6]) == "THAWED" {
					thawed++
				}
			}
			if want := min(most, len(groups)); thawed != want {
				t.Errorf("%d of %d groups are thawed, want %d", thawed, len(groups), want)
			}
		})
	}
}
