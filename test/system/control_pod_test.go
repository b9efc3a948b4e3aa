package system

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// TestControlPod runs the control plane as a static pod, by the manifest that it prints: ready when /readyz is, with
// its data on the machine, where its commands find it, and started again with all of it after it was killed.
func TestControlPod(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if n.peer != nil {
		t.Skip("the image is in the image directory of a node whose runtime is embedded")
	}
	archive, err := os.ReadFile("../../bin/test/berth-control.tar")
	if err != nil {
		t.Fatalf("%v (make build-test makes it)", err)
	}
	write(t, filepath.Join(n.Dir, "images", "berth-control.tar"), string(archive))
	data := filepath.Join(n.Dir, "control")
	control := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), bin("berth-control"), append([]string{"--data-dir", data}, args...)...).Output()
		if err != nil {
			t.Fatalf("berth-control %v: %v", args, err)
		}
		return string(out)
	}
	manifest := control("manifest", "--image", "berth.test/berth-control:1", "--", "--bind", "127.0.0.1", "--port", strconv.Itoa(freePort(t)))
	n.start()
	n.apply("berth-control.yaml", manifest)
	first := n.waitReady("berth-control")

	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(data, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps(metav1.NamespaceDefault)
	if _, err := client.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	control("certs", "renew")
	control("etcd", "status")

	for _, id := range n.processesIn(n.groupOf(first, first.Status.ContainerStatuses[0])) {
		pid, err := strconv.Atoi(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.wait("berth-control", "ready again", func(p *corev1.Pod) bool {
		return isReady(p) && p.Status.ContainerStatuses[0].RestartCount == 1
	})
	if _, err := client.Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	n.remove("berth-control.yaml")
	n.waitGone("berth-control")
	if out, err := exec.CommandContext(t.Context(), bin("berth-control"), "--data-dir", data, "etcd", "status").CombinedOutput(); err == nil {
		t.Errorf("it serves still: %s", out)
	}
}
