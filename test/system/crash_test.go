package system

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// kills is how often the agent is killed; each is at a random moment of a random change.
func (n *Node) kills() int {
	if s, err := strconv.Atoi(os.Getenv("BERTH_KILLS")); err == nil {
		return s
	}
	switch {
	case n.peer != nil && long():
		return 20 // others start pods slowly
	case n.peer != nil:
		return 8
	case long():
		return 200
	}
	return 50
}

// TestKillAgent kills the agent with -9 at random moments while pods come and go. Afterwards exactly the wanted pods
// run, the ones that were never touched have not restarted, and nothing of the others is left.
func TestKillAgent(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	sleeper := func(name string) string {
		return pod(name, `
  volumes: [{name: scratch, emptyDir: {}}, {name: mem, emptyDir: {medium: Memory, sizeLimit: 1Mi}}]
  initContainers: [{name: init, image: `+image+`, command: ["true"]}]
  containers:
  - name: main
    image: `+image+`
    command: [sh, -c, 'trap "exit 0" TERM; echo up; while :; do sleep 1000 & wait; done']
    volumeMounts: [{name: scratch, mountPath: /scratch}, {name: mem, mountPath: /mem}]`)
	}
	still := []string{"still-1", "still-2", "still-3"}
	before := map[string]*corev1.Pod{}
	for _, name := range still {
		n.apply(name+".yaml", sleeper(name))
	}
	for _, name := range still {
		before[name] = n.waitReady(name)
	}

	rnd := chances(t)
	wanted := map[string]bool{}
	for i := range n.kills() {
		for range 1 + rnd.IntN(3) {
			name := fmt.Sprintf("p%d", rnd.IntN(8))
			if wanted[name] {
				n.remove(name + ".yaml")
			} else {
				n.apply(name+".yaml", sleeper(name))
			}
			wanted[name] = !wanted[name]
		}
		time.Sleep(time.Duration(rnd.IntN(120)) * time.Millisecond)
		n.kill()
		if i%3 == 0 {
			n.start()
		} else {
			n.launch()
			time.Sleep(time.Duration(rnd.IntN(150)) * time.Millisecond)
		}
	}
	n.kill()
	n.start()
	maps.DeleteFunc(wanted, func(_ string, want bool) bool { return !want })
	for name := range wanted {
		n.waitReady(name)
	}
	n.eventually("exactly the wanted pods to run", func() error {
		var got []string
		for _, p := range n.pods() {
			got = append(got, strings.TrimSuffix(p.Name, "-node"))
		}
		want := append(slices.Collect(maps.Keys(wanted)), still...)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
	for _, name := range still {
		n.requireSame(before[name], n.waitReady(name))
	}
	n.requireOnly(len(wanted) + len(still))

	for name := range wanted {
		n.remove(name + ".yaml")
	}
	for _, name := range still {
		n.remove(name + ".yaml")
	}
	n.requireNoPods()
}

// requireOnly checks the kernel's view: there are exactly so many pods' interfaces, namespaces, root file systems and
// groups.
func (n *Node) requireOnly(pods int) {
	n.t.Helper()
	n.eventually(fmt.Sprintf("the traces of exactly %d pods", pods), func() error {
		count := map[string]int{}
		for _, l := range n.podLeftovers() {
			switch {
			case strings.HasPrefix(l, "link "):
				count["veths"]++
			// others have some of sandboxes, too
			case n.peer == nil && strings.HasPrefix(l, "mount ") && strings.HasSuffix(l, "/rootfs"):
				count["root file systems"]++
			case strings.HasPrefix(l, "mount ") && strings.Contains(l, "/kubernetes.io~empty-dir/"):
				count["tmpfs volumes"]++
			case strings.HasPrefix(l, "entry run/netns/"):
				count["namespaces"]++
			case strings.HasPrefix(l, "entry run/sandboxes/"):
				count["sandboxes"]++
			case strings.HasPrefix(l, "entry root/pods/"):
				count["pod directories"]++
			case strings.HasPrefix(l, "entry logs/"):
				count["log directories"]++
			case strings.Contains(l, "/memory/") && strings.HasPrefix(l[strings.LastIndex(l, "/")+1:], "pod"):
				count["memory groups"]++
			}
		}
		for what, c := range count {
			if c != pods {
				return fmt.Errorf("%d %s for %d pods", c, what, pods)
			}
		}
		return nil
	})
}

// TestHundredPods drops 100 pods at once and deletes 30 of them at once.
func TestHundredPods(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	sleeper := func(i int) string {
		return pod(fmt.Sprintf("p%d", i), "\n  containers: [{name: main, image: "+image+", command: [sleep, '1000000']}]")
	}
	for i := range 100 {
		n.apply(fmt.Sprintf("p%d.yaml", i), sleeper(i))
	}
	ips := map[string]string{}
	for i := range 100 {
		p := n.waitReady(fmt.Sprintf("p%d", i))
		if other := ips[p.Status.PodIP]; other != "" {
			t.Errorf("%s and %s have the address %s", p.Name, other, p.Status.PodIP)
		}
		ips[p.Status.PodIP] = p.Name
	}
	n.requireOnly(100)
	for i := range 30 {
		n.remove(fmt.Sprintf("p%d.yaml", i))
	}
	n.requireOnly(70)
	for i := 30; i < 100; i++ {
		n.remove(fmt.Sprintf("p%d.yaml", i))
	}
	n.requireNoPods()
}
