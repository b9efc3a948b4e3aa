package cri

import (
	"context"
	"io/fs"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/snapshot"
)

// endless has snapshots that are never counted to their end.
type endless struct {
	snapshot.Snapshotter
	of map[string]bool
}

func (e endless) Usage(ctx context.Context, key string) (snapshot.Usage, error) {
	if e.of[key] {
		<-ctx.Done()
		return snapshot.Usage{Bytes: 1 << 20, Inodes: 1000}, ctx.Err()
	}
	return e.Snapshotter.Usage(ctx, key)
}

// TestLayersOfBombs: newer containers that have more files than can be counted hide none of the others.
func TestLayersOfBombs(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	quiet := map[string]bool{}
	for _, name := range []string{"six", "seven", "eight"} {
		id := n.run(t, pod, name, nil, "sh", "-c", "touch /a /b; exec sleep 1000")
		quiet[id] = true
		n.output(t, pod, name+"-written", nil, "true") // it has run for long enough
	}
	bombs := map[string]bool{}
	for _, name := range []string{"one", "two", "three", "four", "five"} {
		bombs[n.run(t, pod, name, nil, "sleep", "1000")] = true
	}
	n.core.host.Snaps = endless{n.core.host.Snaps, bombs}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	layers := n.Local().Layers(ctx)
	for id := range quiet {
		if of := layers[id]; of.GetInodesUsed().GetValue() < 2 {
			t.Errorf("of one that has few: %v", of)
		}
	}
	for bomb := range bombs {
		if got := layers[bomb].GetInodesUsed().GetValue(); got != 1000 {
			t.Errorf("of a bomb: %d files", got)
		}
	}
}

// TestShed: what containers that have ended have written goes, the oldest first and no more than has to; they stay,
// those that run keep theirs, and it can be asked for again and again.
func TestShed(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	var ended []string
	for _, name := range []string{"one", "two", "three"} {
		id := n.run(t, pod, name, nil, "sh", "-c", "head -c 1000000 /dev/zero > /big; exit 3")
		waitExited(t, n.Server, id)
		ended = append(ended, id)
	}
	running := n.run(t, pod, "four", nil, "sleep", "1000")
	has := func(id string) bool {
		u, err := n.core.host.Snaps.Usage(t.Context(), id)
		return err == nil && u.Inodes > 0
	}
	freed, inodes, err := n.Local().Shed(t.Context(), 1_500_000, 0)
	if err != nil || freed < 2_000_000 || freed > 2_200_000 || inodes < 2 {
		t.Errorf("freed %d bytes, %d files, %v", freed, inodes, err)
	}
	if has(ended[0]) || has(ended[1]) || !has(ended[2]) || !has(running) {
		t.Errorf("there are the files of %v, %v, %v and %v", has(ended[0]), has(ended[1]), has(ended[2]), has(running))
	}
	for range 2 {
		if freed, _, err = n.Local().Shed(t.Context(), 1<<40, 1<<40); err != nil {
			t.Error(err)
		}
	}
	if freed != 0 || has(ended[2]) || !has(running) {
		t.Errorf("freed %d again", freed)
	}
	for _, id := range ended {
		st, err := n.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
		if err != nil || st.GetStatus().GetExitCode() != 3 {
			t.Errorf("%v, %v", st, err)
		}
		if _, err := n.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	}
}

// astray has groups that cannot be read, as those of containers that somebody has moved elsewhere.
type astray struct{ host.Groups }

func (astray) Stat(string) (cgroups.Usage, error) { return cgroups.Usage{}, fs.ErrNotExist }

// TestLayerOfContainerAstray: what a container has written is known, whatever has become of its group.
func TestLayerOfContainerAstray(t *testing.T) {
	n := newNode(t)
	pod, _ := n.pod(t, "a", nil)
	id := n.run(t, pod, "one", nil, "sh", "-c", "head -c 1000000 /dev/zero > /big; exec sleep 1000")
	eventually(t, func() bool { return n.Local().Layers(t.Context())[id].GetUsedBytes().GetValue() > 1_000_000 })
	own := n.core.host.Cgroups
	n.core.host.Cgroups = astray{own}
	l, err := n.ListContainerStats(t.Context(), &runtimeapi.ListContainerStatsRequest{})
	n.core.host.Cgroups = own
	if err != nil || len(l.Stats) != 1 || l.Stats[0].GetWritableLayer().GetUsedBytes().GetValue() < 1_000_000 {
		t.Errorf("%v, %v", l, err)
	}
}
