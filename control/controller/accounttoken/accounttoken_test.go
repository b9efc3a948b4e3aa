package accounttoken

import (
	"context"
	"log/slog"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

type bundle string

func (b bundle) CurrentCABundleContent() []byte { return []byte(b) }

func secretOf(change func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "s", UID: "secret", ResourceVersion: "1",
			Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"},
		},
		Type: corev1.SecretTypeServiceAccountToken,
	}
	if change != nil {
		change(s)
	}
	return s
}

// TestSync has secrets filled, put right and removed; what is none of the controller's stays as it is.
func TestSync(t *testing.T) {
	robot := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "robot-uid"}}
	full := map[string][]byte{"token": []byte("robot/s"), "ca.crt": []byte("authorities"), "namespace": []byte("ns")}
	for name, c := range map[string]struct {
		secret  *corev1.Secret
		unknown bool // the account is not in the cache yet
		absent  bool // the account is not there
		gone    bool
		token   string
	}{
		"new":                  {secret: secretOf(nil), token: "robot/s"},
		"new, as its account":  {secret: secretOf(nil), unknown: true, token: "robot/s"},
		"nobody's":             {secret: secretOf(nil), absent: true, gone: true},
		"of an account before": {secret: secretOf(func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountUIDKey] = "old" }), gone: true},
		"has a token":          {secret: secretOf(func(s *corev1.Secret) { s.Data = map[string][]byte{"token": []byte("mine"), "x": nil} }), token: "mine"},
		"other authorities": {secret: secretOf(func(s *corev1.Secret) {
			s.Annotations[corev1.ServiceAccountUIDKey] = "robot-uid"
			s.Data = map[string][]byte{"token": []byte("mine"), "ca.crt": []byte("old"), "namespace": []byte("ns")}
		}), token: "mine"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{c.secret}
			if !c.absent {
				objects = append(objects, robot)
			}
			client := fake.NewClientset(objects...)
			factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
			core := factory.Core().V1()
			if err := core.Secrets().Informer().GetIndexer().Add(c.secret); err != nil {
				t.Fatal(err)
			}
			if !c.absent && !c.unknown {
				if err := core.ServiceAccounts().Informer().GetIndexer().Add(robot); err != nil {
					t.Fatal(err)
				}
			}
			k := &keeper{cfg: Config{
				Client: client, Bundle: bundle("authorities"), Log: slog.New(slog.DiscardHandler),
				Sign: func(a *corev1.ServiceAccount, secret string) (string, error) { return a.Name + "/" + secret, nil },
			}, secrets: core.Secrets().Lister(), accounts: core.ServiceAccounts().Lister()}
			if _, err := k.sync(context.Background(), cache.MetaObjectToName(c.secret)); err != nil {
				t.Fatal(err)
			}
			got, err := client.CoreV1().Secrets("ns").Get(t.Context(), "s", metav1.GetOptions{})
			if c.gone {
				if !apierrors.IsNotFound(err) {
					t.Errorf("it is there: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Data["token"]) != c.token || string(got.Data["ca.crt"]) != string(full["ca.crt"]) ||
				string(got.Data["namespace"]) != "ns" || got.Annotations[corev1.ServiceAccountUIDKey] != "robot-uid" {
				t.Errorf("it has %q, %v", got.Data, got.Annotations)
			}
			if again, err := k.filled(got, robot); again != nil || err != nil {
				t.Errorf("it is filled again: %v, %v", again, err)
			}
		})
	}
}
