package bootstraptoken

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSigning(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	make := func(change func(*corev1.Secret)) *corev1.Secret {
		s := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
			Data: map[string][]byte{
				"token-id": []byte("abcdef"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte("true"),
			},
		}
		change(s)
		return s
	}
	expires := func(text string) func(*corev1.Secret) {
		return func(s *corev1.Secret) { s.Data["expiration"] = []byte(text) }
	}
	for name, c := range map[string]struct {
		change func(*corev1.Secret)
		want   bool
	}{
		"good":           {func(*corev1.Secret) {}, true},
		"later":          {expires(now.Add(time.Hour).Format(time.RFC3339)), true},
		"ended":          {expires(now.Format(time.RFC3339)), false},
		"no time":        {expires("tomorrow"), false},
		"another type":   {func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, false},
		"another's name": {func(s *corev1.Secret) { s.Name = "bootstrap-token-abcdeg" }, false},
		"no signing":     {func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-signing") }, false},
		"short":          {func(s *corev1.Secret) { s.Data["token-secret"] = []byte("0") }, false},
		"letters":        {func(s *corev1.Secret) { s.Data["token-secret"] = []byte("0123456789ABCDEF") }, false},
		"being deleted":  {func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: now} }, false},
	} {
		if _, got := signing(make(c.change), now); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestKubeconfig keeps the server that somebody has put there, and replaces authorities that are others.
func TestKubeconfig(t *testing.T) {
	bundle := []byte("one")
	s := &signer{cluster: Cluster{Server: "https://192.0.2.1:6443", Bundle: func() []byte { return bundle }}}
	first, err := s.kubeconfig("")
	if err != nil || !strings.Contains(first, "https://192.0.2.1:6443") {
		t.Fatalf("it is %q, %v", first, err)
	}
	if same, err := s.kubeconfig(first); err != nil || same != first {
		t.Errorf("it is %q, %v", same, err)
	}
	balanced := strings.Replace(first, "192.0.2.1", "balancer.example.com", 1)
	bundle = []byte("two")
	next, err := s.kubeconfig(balanced)
	if err != nil || !strings.Contains(next, "balancer.example.com") || next == balanced {
		t.Errorf("it is %q, %v", next, err)
	}
	if torn, err := s.kubeconfig("{"); err != nil || !strings.Contains(torn, "192.0.2.1") {
		t.Errorf("it is %q, %v", torn, err)
	}
}
