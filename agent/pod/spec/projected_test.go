package spec

import (
	"bytes"
	"encoding/pem"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/podcert"
	"github.com/berth-node/berth/agent/volume/kind"
)

func projectedFiles(t *testing.T, pod *corev1.Pod, s *object.Store, issued Issued, sources ...corev1.VolumeProjection) ([]kind.File, error) {
	t.Helper()
	v := &corev1.Volume{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources, DefaultMode: new(int32(0o644))}}}
	files, _, err := Files(pod, v, s, issued, testNode())
	return files, err
}

// TestToken wants a token to be readable by the containers of the pod, and by nobody else where that can be.
func TestToken(t *testing.T) {
	user := func(id int64) *corev1.SecurityContext { return &corev1.SecurityContext{RunAsUser: &id} }
	token := corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}
	for name, c := range map[string]struct {
		change func(*corev1.PodSpec)
		mode   uint32
		user   *int64
	}{
		"nothing said": {func(*corev1.PodSpec) {}, 0o644, nil},
		"one user":     {func(s *corev1.PodSpec) { s.SecurityContext.RunAsUser = new(int64(7)) }, 0o600, new(int64(7))},
		"each the same one": {func(s *corev1.PodSpec) {
			s.InitContainers[0].SecurityContext, s.Containers[0].SecurityContext = user(8), user(8)
		}, 0o600, new(int64(8))},
		"one says none": {func(s *corev1.PodSpec) { s.Containers[0].SecurityContext = user(8) }, 0o644, nil},
		"two": {func(s *corev1.PodSpec) {
			s.SecurityContext.RunAsUser, s.Containers[0].SecurityContext = new(int64(7)), user(8)
		}, 0o644, nil},
		"an ephemeral container's": {func(s *corev1.PodSpec) {
			s.SecurityContext.RunAsUser = new(int64(7))
			s.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{SecurityContext: user(9)}}}
		}, 0o644, nil},
		"a group": {func(s *corev1.PodSpec) { s.SecurityContext.FSGroup = new(int64(5)) }, 0o600, nil},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{}, InitContainers: []corev1.Container{{}}, Containers: []corev1.Container{{}},
		}}
		c.change(&pod.Spec)
		files, err := projectedFiles(t, pod, new(object.Store), Issued{Tokens: map[int]string{0: "secret"}}, token)
		if err != nil || len(files) != 1 || string(files[0].Data) != "secret" || files[0].Mode != c.mode ||
			(files[0].User == nil) != (c.user == nil) || c.user != nil && *c.user != *files[0].User {
			t.Errorf("%s: %+v, %v", name, files, err)
		}
	}
	if _, err := projectedFiles(t, &corev1.Pod{}, new(object.Store), Issued{}, token); err == nil {
		t.Error("without a token the volume is made")
	}
}

func certificate(n string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(n)}))
}

// TestTrustBundles wants each certificate once and nothing else of what bundles have.
func TestTrustBundles(t *testing.T) {
	var s object.Store
	put := func(name, signer, text string) {
		s.Put(object.RefTo(object.ClusterTrustBundle, "", name), &certificatesv1.ClusterTrustBundle{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
			Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
		})
	}
	key := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("k")}))
	noted := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"note": "x"}, Bytes: []byte("b")}))
	put("one", "example.com/s", "a comment\n"+certificate("a")+certificate("b")+key)
	put("two", "example.com/s", noted+certificate("c")+"rest")
	put("other", "example.com/other", certificate("d"))
	source := func(change func(*corev1.ClusterTrustBundleProjection)) corev1.VolumeProjection {
		p := &corev1.ClusterTrustBundleProjection{Path: "ca.crt"}
		change(p)
		return corev1.VolumeProjection{ClusterTrustBundle: p}
	}
	for name, c := range map[string]struct {
		source corev1.VolumeProjection
		want   string // bodies, or the error
	}{
		"by name": {source(func(p *corev1.ClusterTrustBundleProjection) { p.Name = new("other") }), "d"},
		"by signer": {source(func(p *corev1.ClusterTrustBundleProjection) {
			p.SignerName, p.LabelSelector = new("example.com/s"), &metav1.LabelSelector{}
		}), "abc"},
		"by label": {source(func(p *corev1.ClusterTrustBundleProjection) {
			p.SignerName, p.LabelSelector = new("example.com/s"), &metav1.LabelSelector{MatchLabels: map[string]string{"name": "two"}}
		}), "bc"},
		"no selector": {source(func(p *corev1.ClusterTrustBundleProjection) { p.SignerName = new("example.com/s") }), "!ca.crt: no clustertrustbundle of signer"},
		"missing":     {source(func(p *corev1.ClusterTrustBundleProjection) { p.Name = new("x") }), `!ca.crt: clustertrustbundle "x" not found`},
		"optional":    {source(func(p *corev1.ClusterTrustBundleProjection) { p.Name, p.Optional = new("x"), new(true) }), ""},
		"bad selector": {source(func(p *corev1.ClusterTrustBundleProjection) {
			p.SignerName, p.LabelSelector = new("s"), &metav1.LabelSelector{MatchLabels: map[string]string{"!": "!"}}
		}), "!ca.crt: labelSelector"},
	} {
		files, err := projectedFiles(t, &corev1.Pod{}, &s, Issued{}, c.source)
		if why, bad := strings.CutPrefix(c.want, "!"); bad {
			if err == nil || !strings.HasPrefix(err.Error(), why) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil || len(files) != 1 {
			t.Errorf("%s: %v, %v", name, files, err)
			continue
		}
		bodies, plain := map[string]int{}, ""
		for rest := files[0].Data; ; {
			var b *pem.Block
			if b, rest = pem.Decode(rest); b == nil {
				break
			}
			bodies[string(b.Bytes)]++
			plain += certificate(string(b.Bytes))
		}
		if string(files[0].Data) != plain || len(bodies) != len(c.want) {
			t.Errorf("%s: %v in\n%s", name, bodies, files[0].Data)
		}
		for _, b := range c.want {
			if bodies[string(b)] != 1 {
				t.Errorf("%s: %v", name, bodies)
			}
		}
	}
}

// TestTrustBundleOrder wants the order to stay for a pod and to be another one for others, and a bundle of 10 MB to be
// refused.
func TestTrustBundleOrder(t *testing.T) {
	var all []*certificatesv1.ClusterTrustBundle
	for i := range 30 {
		all = append(all, &certificatesv1.ClusterTrustBundle{Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: certificate(strings.Repeat("x", i+1))}})
	}
	one, err := anchors(all, "a")
	same, _ := anchors(append(all[10:len(all):len(all)], all[:10]...), "a")
	other, _ := anchors(all, "b")
	if err != nil || !bytes.Equal(one, same) || bytes.Equal(one, other) || len(one) != len(other) {
		t.Errorf("%v, %d and %d bytes", err, len(one), len(other))
	}
	large := &certificatesv1.ClusterTrustBundle{Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: strings.Repeat("-----BEGIN CERTIFICATE-----\n", 370_000)}}
	if _, err := anchors([]*certificatesv1.ClusterTrustBundle{large}, ""); err == nil || !strings.Contains(err.Error(), "more than 8388608 bytes") {
		t.Errorf("10 MB: %v", err)
	}
	large.Spec.TrustBundle = large.Spec.TrustBundle[:maxBundles]
	if out, err := anchors([]*certificatesv1.ClusterTrustBundle{large}, ""); err != nil || len(out) != 0 {
		t.Errorf("garbage: %d bytes, %v", len(out), err)
	}
}

// TestCertificate wants the key and the chain in the files that the source names, for the pod's eyes alone.
func TestCertificate(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{RunAsUser: new(int64(7))}, Containers: []corev1.Container{{}}}}
	source := corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{CredentialBundlePath: "bundle", KeyPath: "key", CertificateChainPath: "chain"}}
	issued := Issued{Certificates: map[int]podcert.Credential{0: {Key: []byte("K"), Chain: []byte("C")}}}
	files, err := projectedFiles(t, pod, new(object.Store), issued, source)
	if err != nil || len(files) != 3 {
		t.Fatalf("%v, %v", files, err)
	}
	want := map[string]string{"bundle": "KC", "key": "K", "chain": "C"}
	for _, f := range files {
		if string(f.Data) != want[f.Path] || f.Mode != 0o600 || f.User == nil || *f.User != 7 {
			t.Errorf("%+v", f)
		}
	}
	if _, err := projectedFiles(t, pod, new(object.Store), Issued{}, source); err == nil {
		t.Error("without a certificate the volume is made")
	}
}
