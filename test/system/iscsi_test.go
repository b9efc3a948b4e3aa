package system

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-node/berth/agent/volume/iscsi/iscsitest"
)

// TestISCSIMissing has a node without open-iscsi say what is missing.
func TestISCSIMissing(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("iscsiadm"); err == nil {
		t.Skip("there is an iscsiadm")
	}
	n := startNode(t)
	n.requireNamed("disk", "iscsi: {targetPortal: 192.0.2.1, iqn: 'iqn.2001-04.com.example:x', lun: 0}",
		"install open-iscsi")
	n.requireNoPods()
}

// TestISCSIVolume has pods write to disks of a target, through a PersistentVolume with CHAP and by themselves, with an
// agent that is killed.
func TestISCSIVolume(t *testing.T) {
	group := iscsitest.Start(t)
	for file, text := range map[string]string{
		"attrib/authentication": "1", "auth/userid": "node",
		"auth/password": "session-secret",
	} {
		if err := os.WriteFile(filepath.Join(group, file), []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	sessions := func() []string {
		t.Helper()
		found, err := filepath.Glob("/sys/class/iscsi_session/session*")
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	// Pods that an agent takes away as it starts are not listed any more.
	noSession := func() error {
		if got := sessions(); len(got) != 0 {
			return fmt.Errorf("sessions %v", got)
		}
		return nil
	}
	n := startNode(t)
	n.applySecret("chap.yaml", "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/iscsi-chap\nmetadata: {name: chap}\n"+
		"stringData: {node.session.auth.username: node, node.session.auth.password: session-secret}\n")
	n.apply("pv.yaml", `apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  claimRef: {namespace: default, name: data}
  iscsi: {targetPortal: 127.0.0.1, iqn: '`+iscsitest.IQN+`', lun: 0, fsType: ext4, chapAuthSession: true, secretRef: {name: chap}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`)
	mounts := `
  containers:
  - name: main
    image: ` + image + `
    command: [sleep, "1000000"]
    volumeMounts: [{name: d, mountPath: /data}]`
	claimed := pod("claimed", "\n  volumes: [{name: d, persistentVolumeClaim: {claimName: data}}]"+mounts)
	n.apply("claimed.yaml", claimed)
	n.waitReady("claimed")
	n.sh("claimed", "echo kept > /data/file; grep -q ' /data ext4 ' /proc/mounts")
	n.kill()
	n.apply("inline.yaml", pod("inline",
		"\n  securityContext: {fsGroup: 2345}\n  volumes: [{name: d, iscsi: {targetPortal: 127.0.0.1, iqn: '"+iscsitest.IQN+
			"', lun: 1, chapAuthSession: true, secretRef: {name: chap}}}]"+mounts))
	n.start()
	n.waitReady("inline")
	if got := n.sh("inline", "stat -c %g /data; echo x > /data/other; ls /data"); !strings.HasPrefix(got, "2345\n") ||
		!strings.Contains(got, "other") {
		t.Errorf("%q", got)
	}
	if got := n.sh("claimed", "cat /data/file"); got != "kept\n" {
		t.Errorf("%q", got)
	}
	if got := sessions(); len(got) != 1 {
		t.Errorf("sessions %v", got)
	}
	n.kill()
	n.remove("inline.yaml")
	n.remove("claimed.yaml")
	n.start()
	n.waitGone("inline")
	n.waitGone("claimed")
	n.eventually("the session to end", noSession)
	n.apply("claimed.yaml", claimed)
	n.waitReady("claimed")
	if got := n.sh("claimed", "cat /data/file"); got != "kept\n" {
		t.Errorf("%q", got)
	}
	n.remove("claimed.yaml")
	n.waitGone("claimed")
	n.eventually("the session to end", noSession)
	if out, err := exec.CommandContext(t.Context(), "iscsiadm", "-m", "iface").CombinedOutput(); err != nil ||
		strings.Contains(string(out), "berth-") {
		t.Errorf("%v: left: %s", err, out)
	}
	n.requireNoPods()
}
