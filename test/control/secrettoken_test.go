package control

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSecretToken has a token made for a secret, who comes with it come in, and nobody once its secret is gone; the
// secret goes with its account.
func TestSecretToken(t *testing.T) {
	t.Parallel()
	p := share(t)
	accounts, secrets := p.client.CoreV1().ServiceAccounts(p.ns), p.client.CoreV1().Secrets(p.ns)
	if _, err := accounts.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	keep := func(name string) string {
		t.Helper()
		_, err := secrets.Create(t.Context(), &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
			Type:       corev1.SecretTypeServiceAccountToken,
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		token := ""
		until(t, "secret "+name+" has a token", func() error {
			s, err := secrets.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			token = string(s.Data[corev1.ServiceAccountTokenKey])
			if token == "" || string(s.Data[corev1.ServiceAccountNamespaceKey]) != p.ns || string(s.Data[corev1.ServiceAccountRootCAKey]) != string(p.config.CAData) {
				return fmt.Errorf("it has %d values", len(s.Data))
			}
			return nil
		})
		return token
	}
	who := func(token string) (string, error) {
		// Who is known and has no rights is refused in another way than who is not known.
		_, err := p.as(t, token).CoreV1().Secrets(p.ns).List(t.Context(), metav1.ListOptions{})
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			return "", err
		}
		return status.Status().Message, err
	}
	one, other := keep("one"), keep("other")
	robot := fmt.Sprintf(`User "system:serviceaccount:%s:robot" cannot list`, p.ns)
	for _, token := range []string{one, other} {
		if text, err := who(token); !apierrors.IsForbidden(err) || !strings.Contains(text, robot) {
			t.Errorf("it comes in as %q, %v", text, err)
		}
	}
	s, err := secrets.Get(t.Context(), "one", metav1.GetOptions{})
	if err != nil || s.Labels["kubernetes.io/legacy-token-last-used"] == "" {
		t.Errorf("its use is not noted: %v, %v", s.Labels, err)
	}
	m, err := p.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kube-apiserver-legacy-service-account-token-tracking", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.DateOnly, m.Data["since"]); err != nil {
		t.Error(err)
	}
	if err := secrets.Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if text, err := who(one); !apierrors.IsUnauthorized(err) {
		t.Errorf("without its secret: %q, %v", text, err)
	}
	if err := accounts.Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the secret goes with its account", func() error {
		_, err := secrets.Get(t.Context(), "other", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
	if text, err := who(other); !apierrors.IsUnauthorized(err) {
		t.Errorf("without its account: %q, %v", text, err)
	}
}
