package cri

import (
	"context"
	"testing"
	"time"

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
