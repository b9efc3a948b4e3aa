package vm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The pods that have something on the disk, in MiB, beside the one that stays, which has next to nothing.
const (
	muchHas   = 400
	littleHas = 60
)

// short is by how many MiB the disk is first short of what has to be left: the end of one pod is enough.
const short = 150

// writer is a pod that writes so many MiB, and is ready then.
func writer(name string, mib int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: %[1]s
    image: 127.0.0.1:5000/site:1
    command: [/bin/busybox, sh, -c, "/bin/busybox dd if=/dev/zero of=/data/part bs=1M count=%[2]d &&
      /bin/busybox mv /data/part /data/all && exec /bin/busybox sleep 1000000"]
    readinessProbe: {exec: {command: [/bin/busybox, test, -e, /data/all]}, timeoutSeconds: 60}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, emptyDir: {}}]
`, name, mib)
}

// evictedWith starts the agent anew with a time for which DiskPressure holds when the disk is not short any more. The
// setting is on no disk, since that may be full.
func (l *life) evictedWith(transition string) {
	l.machine.run(fmt.Sprintf(`mkdir -p /run/systemd/system/berth.service.d
printf '[Service]\nExecStart=\nExecStart=/usr/bin/berth agent --eviction-hard=nodefs.available<10%%%%%%%% --eviction-pressure-transition-period=%s\n' \
	>/run/systemd/system/berth.service.d/full.conf
systemctl daemon-reload
systemctl restart berth`, transition))
	l.agentAnswers()
}

// agentAnswers waits for the agent to.
func (l *life) agentAnswers() {
	l.machine.await("an answer of the agent", "systemctl is-active berth && berth pods && berth eviction status")
}

// went are the pods that were evicted, in order.
func (l *life) went(t *testing.T) string {
	t.Helper()
	var told struct {
		Decisions []struct {
			Signal string `json:"signal"`
			Pod    struct {
				Name string `json:"name"`
			} `json:"pod"`
			Result struct {
				Error string `json:"error"`
			} `json:"result"`
		} `json:"decisions"`
	}
	if err := json.Unmarshal([]byte(l.machine.run("berth eviction why -o json")), &told); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range told.Decisions {
		if d.Pod.Name == "" {
			continue // something that no pod needs went
		}
		if d.Signal != "nodefs.available" || d.Result.Error != "" {
			t.Errorf("%+v", d)
		}
		names = append(names, strings.TrimSuffix(d.Pod.Name, "-berth-vm"))
	}
	return strings.Join(names, " ")
}

// evicted waits until these pods are, in this order, and holds nobody else to have gone.
func (l *life) evicted(t *testing.T, pods ...string) {
	t.Helper()
	for _, pod := range pods {
		l.machine.await(pod+" to be evicted", fmt.Sprintf(`berth pods --no-headers | grep -E '^%s-berth-vm +0/1'`, pod))
		l.machine.await("the eviction of "+pod+" to be told of", "berth eviction why "+pod)
	}
	if went := l.went(t); went != strings.Join(pods, " ") {
		t.Errorf("of the pods went %q, want %q", went, pods)
	}
}

// full fills the disk. When it is a little short the pod goes that has most on it, and that is all. When there is
// nothing left the others go in order, and the agent answers, also one that is started then. With room for them all
// come back.
func (l *life) full(t *testing.T) {
	m := l.machine
	all := []string{"much", "little", "site"}
	l.evictedWith("1h") // who went stays away
	for pod, mib := range map[string]int{"much": muchHas, "little": littleHas} {
		m.run(fmt.Sprintf("cat >/etc/berth/new <<'END'\n%sEND\nmv /etc/berth/new /etc/berth/manifests/%s.yaml", writer(pod, mib), pod))
	}
	l.ready(all...)
	if went := l.went(t); went != "" {
		t.Fatalf("before the disk is short went %s", went)
	}
	m.run(fmt.Sprintf(`sync; read -r size left < <(df -B1 --output=size,avail / | tail -n 1)
fallocate -l $((left - size / 10 + (%d << 20))) /root/filler`, short))
	l.evicted(t, all[:1]...)
	m.await("the pressure to be told", "berth eviction status | grep -E '^DiskPressure +True'")
	l.ready("little", "site")
	l.serves(t)

	const rest = `fallocate -l $(($(df -B1 --output=avail / | tail -n 1) - 65536)) /root/filler%d || true
dd if=/dev/zero of=/root/more%d bs=4k 2>/dev/null || true
df -B1 --output=avail / | tail -n 1`
	m.run(fmt.Sprintf(rest, 1, 1))
	l.evicted(t, all...)
	t.Logf("%s bytes are left when pods have gone", m.run(fmt.Sprintf(rest, 2, 2)))
	l.agentAnswers()
	m.run("systemctl kill --kill-who=main --signal=KILL berth")
	l.agentAnswers()
	l.evictedWith("5s")
	if pods := m.run("berth pods --no-headers"); strings.Contains(pods, "Running") {
		t.Errorf("on a full disk run\n%s", pods)
	}

	m.run("rm -f /root/filler* /root/more*")
	m.await("the pressure to be over", "berth eviction status | grep -E '^DiskPressure +False'")
	slices.Reverse(all)
	l.ready(all...)
	l.serves(t)
	if went := l.went(t); went != "much little site" {
		t.Errorf("when there was room again went %s", went)
	}
	m.run("rm -f /etc/berth/manifests/{much,little}.yaml")
	m.await("the pods to be gone", `! berth pods --no-headers | grep -E '^(much|little)-'`)
	l.true(t)
	m.run("rm -r /run/systemd/system/berth.service.d; systemctl daemon-reload; systemctl restart berth")
	l.agentAnswers()
	l.ready("site")
}
