package system

import (
	"os"
	"strings"
	"testing"
)

// TestDebugLog reads a pod's way through the agent from its log at level debug, in order, from its manifest to its end.
func TestDebugLog(t *testing.T) {
	t.Parallel()
	n := startNode(t, "--log-level=debug")
	n.apply("a.yaml", pod("a", `
  terminationGracePeriodSeconds: 1
  volumes: [{name: scratch, emptyDir: {}}]
  containers:
  - name: main
    image: `+image+`
    command: [sleep, '1000000']
    volumeMounts: [{name: scratch, mountPath: /scratch}]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}`))
	uid := string(n.waitReady("a").UID)
	n.remove("a.yaml")
	n.waitGone("a")
	n.stop()

	b, err := os.ReadFile(n.Log)
	if err != nil {
		t.Fatal(err)
	}
	var way []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, "uid="+uid) {
			way = append(way, line)
		}
		if strings.Contains(line, " err=") {
			t.Errorf("an error is in another field than error: %s", line)
		}
	}
	in := func(from int, words ...string) int {
		for i, line := range way[from:] {
			all := true
			for _, w := range words {
				all = all && strings.Contains(line, w)
			}
			if all {
				return from + i + 1
			}
		}
		t.Errorf("no line with %q after line %d of the pod", words, from)
		return from
	}
	at := 0
	for _, words := range [][]string{
		{`"step begins"`, "pod=default/a-node", "step=prepare"},
		{"part=directory"},
		{"part=sandbox"},
		{`"step is done"`, "step=prepare", "took="},
		{`"step begins"`, "step=start", "container=main"},
		{"operation=create_container", "container=main", "sandbox="},
		{`"step is done"`, "step=start", "container=main"},
		{`"probe has another result"`, "container=main", "probe=Readiness", "passed=true"},
		{`"step begins"`, "step=kill"},
		{"operation=stop_container", "pod=default/a-node", "container=main"},
		{`"step is done"`, "step=kill"},
		{`"step begins"`, "step=teardown"},
		{`part="remove sandbox"`},
		{`"volumes are removed"`},
		{`part="remove directory"`},
		{`"step is done"`, "step=teardown"},
	} {
		at = in(at, words...)
	}
	// What is made side by side comes in any order.
	for _, words := range [][]string{
		{`"cgroup was changed"`, "operation=create"},
		{`"cgroup was changed"`, "operation=destroy"},
		{`"volume is there"`, "volume=scratch"},
		{"operation=run_podsandbox"},
		{"step=image", "container=main"},
	} {
		in(0, words...)
	}
	if n.peer == nil {
		in(0, `"sandbox is connected to the network"`, "sandbox=")
		in(0, `"runtime's step is done"`, `of="create container"`, "container=main")
	}
	if t.Failed() {
		t.Logf("the pod's lines:\n%s", strings.Join(way, ""))
	}
}
