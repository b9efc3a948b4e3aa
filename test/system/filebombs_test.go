package system

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestManyFileBombs has more pods make files without end than are counted at once, in volumes and in their own layers,
// beside pods that have some files each. Just the bombs go, as many as have to, and all others run on.
func TestManyFileBombs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--eviction-hard=nodefs.inodesFree<30%", "--eviction-pressure-transition-period=1s")
	n.disk("root", "1g,nr_inodes=60000")
	n.start()
	unharmed := n.beside()
	const bombs, others = 20, 4
	before := map[string]*corev1.Pod{}
	for i := range others {
		name := fmt.Sprintf("other%d", i)
		n.apply(name+".yaml", bomb(name, "cd /data; seq 200 | xargs touch; sleep 1000000",
			", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
		before[name] = n.waitReady(name)
	}
	for i := range bombs {
		name, dir := fmt.Sprintf("bomb%02d", i), []string{"/data", "/var"}[i%2]
		n.apply(name+".yaml", bomb(name, "sleep 5; cd "+dir+"; seq 1000000 | xargs touch; sleep 1000000",
			", volumeMounts: [{name: data, mountPath: /data}]", "\n  volumes: [{name: data, emptyDir: {}}]"))
	}
	for i := range bombs {
		n.requireEvicted(fmt.Sprintf("bomb%02d", i), "inodes")
	}
	n.waitCondition("DiskPressure", "False")
	for _, d := range n.requireDecisions(bombs) {
		if d.Signal != "nodefs.inodesFree" || !strings.HasPrefix(d.Pod.Name, "bomb") {
			t.Errorf("%+v", d)
		}
	}
	for name, was := range before {
		n.requireSame(was, n.waitReady(name))
	}
	unharmed(bombs)
}
