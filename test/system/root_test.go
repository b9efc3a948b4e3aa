package system

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRootIsForOne: an agent and a purge that name a node's root directory, and another run directory, do nothing to
// what it has there; the agent whose runtime is elsewhere is not kept from it by the runtime's records.
func TestRootIsForOne(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	n.apply("web.yaml", pod("web", sleeping))
	before := n.waitReady("web")
	other := t.TempDir()
	place := []string{
		"--root-dir=" + n.Dir + "/root", "--run-dir=" + other + "/run", "--log-dir=" + other + "/logs",
		"--cgroup-root=" + n.CgroupRoot + "-2", "--bridge-name=" + n.Bridge + "x", "--pod-cidr=" + n.CIDR,
	}
	for _, command := range [][]string{
		{"agent", "--manifest-dir=" + other + "/manifests", "--cni-conf-dir=" + filepath.Join(n.Dir, "cni")},
		{"agent", "--manifest-dir=" + other + "/manifests", "--runtime=unix://" + other + "/nobody.sock"},
		{"purge", "--yes"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		out, err := exec.CommandContext(ctx, bin("berth"), slices.Concat(command, place)...).CombinedOutput()
		if err == nil || ctx.Err() != nil || !strings.Contains(string(out), "--root-dir must differ") {
			t.Errorf("%s: %v, %v: %s", command[0], err, ctx.Err(), out)
		}
		cancel()
	}
	n.requireSame(before, n.waitReady("web"))
}
