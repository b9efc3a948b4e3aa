package vm

import (
	"strconv"
	"testing"
)

// kept is a pod with a volume that the node makes for its claim. It writes a file once and holds it to its digest at
// each start, of which it keeps count; all of that is on the disk before it is ready.
const kept = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: local.csi.berth.node
parameters: {type: loop}
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: kept}
spec:
  storageClassName: local
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: 64Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: kept}
spec:
  terminationGracePeriodSeconds: 1
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: kept}
  containers:
  - name: kept
    image: 127.0.0.1:5000/site:1
    volumeMounts: [{name: data, mountPath: /kept}]
    readinessProbe: {exec: {command: [/bin/busybox, test, -e, /ready]}, timeoutSeconds: 60}
    command:
    - /bin/busybox
    - sh
    - -ec
    - |
      b=/bin/busybox
      cd /kept
      if [ ! -e SUM ]; then
        $b dd if=/dev/urandom of=file bs=64k count=64
        $b sha256sum file >new
        $b sync
        $b mv new SUM
      fi
      $b sha256sum -c SUM
      echo started >>starts
      $b sync
      : >/ready
      exec $b sleep 1000000
`

// volume has a pod keep data.
func (l *life) volume(t *testing.T) {
	l.machine.run("cat >/etc/berth/new <<'END'\n" + kept + "END\nmv /etc/berth/new /etc/berth/manifests/kept.yaml")
	l.keeps(t)
}

// keeps waits for that pod, which is ready with the data it once wrote and synced, and with more starts than before.
func (l *life) keeps(t *testing.T) {
	t.Helper()
	l.ready("kept")
	out := l.machine.run("berth exec kept-berth-vm -- /bin/busybox grep -c started /kept/starts")
	starts, err := strconv.Atoi(out)
	if err != nil || starts <= l.starts {
		t.Errorf("the volume has %q starts, and had %d before", out, l.starts)
	}
	l.starts = starts
	l.machine.run("berth volumes check")
}

// forgets deletes the claim's volume, which outlives both the claim and the package.
func (l *life) forgets() {
	l.machine.run("rm /etc/berth/manifests/kept.yaml")
	l.machine.await("the pod with the volume to be gone", `! berth pods --no-headers | grep '^kept-'`)
	l.machine.run("berth volumes delete kept")
	l.machine.await("the volume to be gone", `volumes=$(berth volumes -o json) && [[ "$volumes" != *kept* ]] && [ -z "$(losetup -a)" ]`)
}
