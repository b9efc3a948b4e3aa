package pod

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/agent/pod/podtest"
	"github.com/berth-node/berth/agent/pod/spec"
)

// TestGone: of pods that nobody knows the directories go, by hand and by themselves, and neither those of pods that are
// there nor logs that somebody else has made.
func TestGone(t *testing.T) {
	for name, hand := range map[string]bool{"by hand": true, "by itself": false} {
		t.Run(name, func(t *testing.T) {
			onNode(t, func(n *testNode) {
				p := podtest.New("web")
				n.apply(p)
				n.pass(time.Second)
				kept := []string{spec.LogDirectory(n.cfg.LogDir, p), filepath.Join(n.cfg.RootDir, "pods", string(p.UID))}
				pod := filepath.Join(n.cfg.RootDir, "pods", "0-0")
				logs, theirs := filepath.Join(n.cfg.LogDir, "ns_gone_1-1"), filepath.Join(n.cfg.LogDir, "ns_theirs_2-2")
				pattern := filepath.Join(n.cfg.LogDir, "ns_all_*")
				for _, d := range []string{pod, filepath.Join(logs, "c"), theirs, pattern} {
					if err := os.MkdirAll(d, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				for path, root := range map[string]string{logs: n.cfg.RootDir, theirs: "/elsewhere", pattern: n.cfg.RootDir} {
					if err := unix.Lsetxattr(path, "trusted.berth.root", []byte(root), 0); err != nil {
						t.Skipf("needs trusted attributes: %v", err)
					}
				}
				prune := NewPruner(n.m)
				list, err := prune.Gone(n.t.Context())
				var found []string
				for _, g := range list {
					found = append(found, g.Path)
				}
				slices.Sort(found)
				if want := logs + " " + pod; err != nil || strings.Join(found, " ") != want {
					t.Errorf("found %q, %v, want %q", found, err, want)
				}
				if hand {
					if got := prune.RemoveGone(n.t.Context(), list); len(got) != 2 {
						t.Errorf("removed %+v", got)
					}
				} else {
					n.pass(10 * time.Minute)
				}
				for _, d := range []string{pod, logs} {
					if _, err := os.Stat(d); err == nil {
						t.Errorf("%s is still there", d)
					}
				}
				for _, d := range append(kept, theirs, pattern) {
					if _, err := os.Stat(d); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
