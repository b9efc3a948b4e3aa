// Package serviceaccount keeps the service account in each namespace that pods have which name none. Without it no pod
// can be made there.
package serviceaccount

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

const (
	name    = "default"
	workers = 2
)

type keeper struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

// New makes the controller.
func New(client kubernetes.Interface, informers coreinformers.Interface, log *slog.Logger) controller.Controller {
	namespaces, accounts := informers.Namespaces(), informers.ServiceAccounts()
	k := &keeper{client, namespaces.Lister(), accounts.Lister()}
	return controller.NewLoop(log, workers, k.sync).
		Watch(namespaces.Informer(), controller.Name).
		Watch(accounts.Informer(), controller.Of(name, controller.Namespace))
}

func (k *keeper) sync(ctx context.Context, namespace string) (time.Duration, error) {
	n, err := k.namespaces.Get(namespace)
	if apierrors.IsNotFound(err) || err == nil && n.Status.Phase != corev1.NamespaceActive {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find namespace %s: %w", namespace, err)
	}
	if _, err := k.accounts.ServiceAccounts(namespace).Get(name); !apierrors.IsNotFound(err) {
		return 0, err
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	_, err = k.client.CoreV1().ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	if err == nil || controller.Ended(err) || apierrors.IsAlreadyExists(err) {
		return 0, nil
	}
	return 0, fmt.Errorf("make service account %s/%s: %w", namespace, name, err)
}
