package kills

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

// The last kill of each container is kept over a restart of the agent, that of others is not, and none is told twice.
func TestKillsAreKept(t *testing.T) {
	h, err := cgroups.Open("")
	if err != nil {
		t.Skipf("needs a cgroup hierarchy: %v", err)
	}
	tree := kube.NewTree(h, "/x")
	var told []string
	k := &kills{cfg: Config{Tree: tree, Log: slog.New(slog.DiscardHandler)}, told: func(o cgroups.OOMKill) { told = append(told, o.Comm) }}
	at := time.Unix(1000, 0)
	pod := tree.ClassPath(corev1.PodQOSBurstable) + "/pod1"
	kill := func(group, comm string, pid int) cgroups.OOMKill {
		return cgroups.OOMKill{Time: at, Pid: pid, Comm: comm, Group: group, Anon: 1 << 20}
	}
	for _, o := range []struct {
		cgroups.OOMKill
		want bool
	}{
		{kill(pod+"/c1", "a", 1), true},
		{kill(pod+"/c1", "a", 1), false},
		{kill(pod+"/c1", "b", 2), true},
		{kill(pod+"/c2/below", "c", 3), true},
		{kill("/kubepods/burstable/pod1/c1", "another agent's", 4), false},
		{kill("/x/kubepodsother/pod1/c1", "a stranger's", 4), false},
		{kill("", "nobody's", 5), false},
	} {
		if got := k.keep(o.OOMKill); got != o.want {
			t.Errorf("%+v: %t", o.OOMKill, got)
		}
	}
	if got := fmt.Sprint(told); got != "[a b c]" {
		t.Errorf("told: %s", got)
	}
	for i := range 3 * maxPodKills {
		k.keep(kill(fmt.Sprintf("%s/again%d", pod, i), "d", 10+i))
	}
	if len(k.kept) > maxPodKills {
		t.Errorf("of one pod %d kills are kept", len(k.kept))
	}
	k.keep(kill(tree.ClassPath(corev1.PodQOSBestEffort)+"/pod2/c", "e", 6))
	file := filepath.Join(t.TempDir(), File)
	if _, err := cgroups.LoadKills(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	k.save(file)
	next := &kills{cfg: k.cfg, told: k.told}
	if next.kept, err = cgroups.LoadKills(file); err != nil || len(next.kept) != len(k.kept) {
		t.Fatalf("%d of %d are read, %v", len(next.kept), len(k.kept), err)
	}
	if next.keep(kill(tree.ClassPath(corev1.PodQOSBestEffort)+"/pod2/c", "e", 6)) {
		t.Error("a kill that was told before the restart is told again")
	}
	if err := os.WriteFile(file, []byte(`{"version":1,"kills":[{"ti`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cgroups.LoadKills(file); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a torn file: %v", err)
	}
	if err := next.follow(context.Background(), file+"/none", file); err == nil {
		t.Error("a log that is not there was followed")
	}
}
