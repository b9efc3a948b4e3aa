package bootstraptoken

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-node/berth/control/controller"
)

type cleaner struct {
	client  kubernetes.Interface
	secrets corelisters.SecretNamespaceLister
	now     func() time.Time
}

// NewCleaner makes the controller that removes tokens which have ended.
func NewCleaner(client kubernetes.Interface, secrets coreinformers.SecretInformer, log *slog.Logger) controller.Controller {
	c := &cleaner{client, secrets.Lister().Secrets(metav1.NamespaceSystem), time.Now}
	return controller.NewLoop(log, 1, c.sync).Watch(secrets.Informer(), func(o any) []string {
		if s, ok := o.(*corev1.Secret); ok && s.Namespace == metav1.NamespaceSystem && isToken(s) {
			return []string{s.Name}
		}
		return nil
	})
}

func (c *cleaner) sync(ctx context.Context, name string) (time.Duration, error) {
	s, err := c.secrets.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find token %s: %w", name, err)
	}
	at := expiry(s)
	if !isToken(s) || at.IsZero() {
		return 0, nil
	}
	if left := at.Sub(c.now()); left > 0 {
		return left, nil
	}
	err = c.client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{
		// One that was prolonged meanwhile stays.
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("remove token %s: %w", name, err)
	}
	return 0, nil
}
