package system

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// referring makes an object of each kind that pods refer to, and a pod that has them all. It returns what the pod shows
// of them, and what a reboot does to the driver of its volume.
func (m *member) referring() (show, want string, reboot func()) {
	m.t.Helper()
	a := newAuthority(m.t)
	m.signs(a)
	s, d := m.withMischief(1<<20, true)
	m.bundle("trusted", "", a.pem)
	core := m.plane.Client.CoreV1()
	_, err := core.ConfigMaps("default").Create(m.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"color": "red"},
	}, metav1.CreateOptions{})
	if err == nil {
		_, err = core.Secrets("default").Create(m.t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"pass": "word"}, Immutable: new(true),
		}, metav1.CreateOptions{})
	}
	var svc *corev1.Service
	if err == nil {
		svc, err = core.Services("default").Create(m.t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "shop"},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}}},
		}, metav1.CreateOptions{})
	}
	if err == nil {
		_, err = m.plane.Client.NodeV1().RuntimeClasses().Create(m.t.Context(), &nodev1.RuntimeClass{
			ObjectMeta: metav1.ObjectMeta{Name: "other"}, Handler: "crun",
		}, metav1.CreateOptions{})
	}
	if err != nil {
		m.t.Fatal(err)
	}
	named := corev1.LocalObjectReference{Name: "settings"}
	m.create(s.bound("all", func(p *corev1.Pod) {
		c := &p.Spec.Containers[0]
		p.Spec.RuntimeClassName = new("other")
		c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: named}}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "disk", MountPath: "/disk"}, {Name: "v", MountPath: "/v"}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "disk", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}},
			{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "key"}}},
				{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "shop"}},
				trusting(corev1.ClusterTrustBundleProjection{Name: new("trusted"), Path: "trusted.pem"}),
				{PodCertificate: &corev1.PodCertificateProjection{
					SignerName: "example.com/good", KeyType: "ECDSAP256", KeyPath: "key.pem", CertificateChainPath: "chain.pem", CredentialBundlePath: "all.pem",
				}},
			}}}},
		}
	}))
	m.attached()
	m.apiReady("all")
	m.inPod("all", "echo kept > /disk/file && sync")
	show = `echo "$color $(cat /v/pass) $SHOP_SERVICE_HOST $(cat /disk/file)"; cat /v/trusted.pem`
	return show, fmt.Sprintf("red word %s kept\n%s", svc.Spec.ClusterIP, a.pem), func() {
		if err := d.Reboot(); err != nil {
			m.t.Error(err)
		}
	}
}

// attached has the one volume that is to be attached be so.
func (m *member) attached() {
	m.t.Helper()
	all := m.plane.Client.StorageV1().VolumeAttachments()
	m.eventually("a volume to be attached", func() error {
		list, err := all.List(m.t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			return fmt.Errorf("there are %d, %w", len(list.Items), err)
		}
		one := &list.Items[0]
		one.Status.Attached = true
		_, err = all.UpdateStatus(m.t.Context(), one, metav1.UpdateOptions{})
		return err
	})
}

// TestOfflineKinds: a machine that boots without its API server has for its pod an object of each kind that pods refer
// to: as settings, secrets, volume with what it takes to mount it, runtime, Services, trust bundle, token and
// certificate. What is kept and damaged meanwhile stops neither the agent nor, once the API server is back, the pod.
func TestOfflineKinds(t *testing.T) {
	t.Parallel()
	m := joined(t, "--offline=keep-pods")
	m.nodeReady()
	show, want, reboot := m.referring()
	secrets := "cat /v/token /v/all.pem"
	if got := m.inPod("all", show); got != want {
		t.Fatalf("the pod shows %q, want %q", got, want)
	}
	had := m.inPod("all", secrets)
	m.create(m.bound("last"))
	m.apiReady("last") // what came before it is kept

	boot := func(damage func(path string)) {
		m.kill()
		m.plane.Kill()
		m.reboot()
		reboot()
		damage(filepath.Join(m.Dir, "root/offline/pods"))
		m.start()
	}
	boot(func(string) {})
	m.waitReady("all")
	if got := m.inPod("all", show); got != want {
		t.Errorf("without the API server the pod shows %q, want %q", got, want)
	}
	if got := m.inPod("all", secrets); got != had {
		t.Errorf("it has another token or certificate: %q, before %q", got, had)
	}
	m.plane.Again(t)
	m.apiReady("all")

	for name, change := range map[string]func([]byte) []byte{
		"flipped": func(b []byte) []byte { b[len(b)/2] ^= 0x40; return b },
		"halved":  func(b []byte) []byte { return b[:len(b)/2] },
		"emptied": func([]byte) []byte { return nil },
	} {
		t.Log(name)
		boot(func(path string) {
			b, err := os.ReadFile(path)
			if err != nil || len(b) < 100 {
				t.Fatalf("%d bytes are kept, %v", len(b), err)
			}
			if err := os.WriteFile(path, change(b), 0o600); err != nil {
				t.Fatal(err)
			}
		})
		if out, errs, code := m.berth("pods"); code != 0 {
			t.Errorf("%s: the agent does not answer: %s%s", name, out, errs)
		}
		m.plane.Again(t)
		m.apiReady("last")
		m.eventually(name+": the pod to be as before", func() error {
			out, errs, _ := m.berth("exec", "all", "--", "sh", "-c", show)
			if out != want {
				return fmt.Errorf("it shows %q %s", out, errs)
			}
			return nil
		})
		if name == "flipped" {
			left, err := os.ReadDir(filepath.Join(m.Dir, "root/offline"))
			if err != nil || !slices.ContainsFunc(left, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "pods.") }) {
				t.Errorf("what was damaged is not put aside: %v, %v", left, err)
			}
		}
	}
	for _, name := range []string{"all", "last"} {
		m.delete(name, nil)
		m.apiGone(name)
	}
	m.requireNoPods()
}
