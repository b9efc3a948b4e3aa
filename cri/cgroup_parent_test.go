package cri

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
)

// TestCgroupParents: pods and containers are where the kernel says, below each kind of parent a client may name.
func TestCgroupParents(t *testing.T) {
	n := newNode(t)
	slice := fmt.Sprintf("btest%d", os.Getpid())
	h, err := cgroups.Open("")
	if err != nil {
		t.Fatal(err)
	}
	// Parents are the client's to remove.
	t.Cleanup(func() {
		if err := h.Remove(context.Background(), "/"+slice+".slice"); err != nil {
			t.Error(err)
		}
	})
	for i, tt := range []struct{ parent, want string }{
		{"", path.Join(n.cfg.CgroupRoot, "berth")},
		{n.cfg.CgroupRoot + "/a/b", n.cfg.CgroupRoot + "/a/b"},
		{slice + "-pods.slice", "/" + slice + ".slice/" + slice + "-pods.slice"},
	} {
		name := fmt.Sprint("p", i)
		pod, _ := n.pod(t, name, func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = tt.parent })
		id := n.run(t, pod, "main", nil, "sleep", "1000")
		c, err := n.core.ctrs.Table.ByID.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", c.Record().Pid))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			group := strings.TrimSpace(line[strings.LastIndex(line, ":")+1:])
			// Hierarchies without controllers are nobody's business here.
			if (h.Mode() == cgroups.Unified || strings.Contains(line, ":memory:")) && (path.Dir(group) != tt.want || !strings.Contains(path.Base(group), id)) {
				t.Errorf("parent %q: the container is in %s", tt.parent, group)
			}
		}
		if _, err := n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Error(err)
		}
		if kids, err := h.Children(tt.want); err != nil || strings.Contains(strings.Join(kids, " "), id) {
			t.Errorf("parent %q: %q is left, %v", tt.parent, kids, err)
		}
	}
}
