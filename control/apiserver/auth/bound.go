package auth

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
)

// objectGetter finds the objects that tokens are bound to. uid is the one that is expected: an answer that is not
// current may have another.
type objectGetter interface {
	get(ctx context.Context, kind, namespace, name, uid string) (metav1.Object, error)
}

// check is nil when all objects are there that the token is bound to, with the UIDs that it names.
func (b *TokenBinding) check(ctx context.Context, objects objectGetter, now time.Time) error {
	if b.Namespace == "" || b.ServiceAccount.Name == "" || b.ServiceAccount.UID == "" {
		return fmt.Errorf("it names no service account")
	}
	wanted := []struct {
		kind, namespace string
		bound           *BoundObject
	}{{"ServiceAccount", b.Namespace, &b.ServiceAccount}, {"Secret", b.Namespace, b.Secret}, {"Pod", b.Namespace, b.Pod}}
	if b.Pod == nil { // else the node is only where the pod was when the token was made
		wanted = append(wanted, struct {
			kind, namespace string
			bound           *BoundObject
		}{"Node", "", b.Node})
	}
	for _, w := range wanted {
		if w.bound == nil {
			continue
		}
		o, err := objects.get(ctx, w.kind, w.namespace, w.bound.Name, w.bound.UID)
		if err != nil {
			return fmt.Errorf("find %s %s that it is bound to: %w", w.kind, w.bound.Name, err)
		}
		if string(o.GetUID()) != w.bound.UID {
			return fmt.Errorf("%s %s that it is bound to has UID %s, not %s", w.kind, w.bound.Name, o.GetUID(), w.bound.UID)
		}
		// One that is being deleted may still end its work, for as long as clocks may differ.
		if gone := o.GetDeletionTimestamp(); gone != nil && gone.Time.Before(now.Add(-leeway)) {
			return fmt.Errorf("%s %s that it is bound to is deleted", w.kind, w.bound.Name)
		}
	}
	return nil
}

// askTimeout bounds a question to the server about a bound object.
const askTimeout = 5 * time.Second

// clusterObjects asks the informers, and the server itself where they do not know the object: it may be so new that
// they have not heard of it.
type clusterObjects struct {
	informers informers.SharedInformerFactory
	client    kubernetes.Interface
}

func (c *clusterObjects) get(ctx context.Context, kind, namespace, name, uid string) (metav1.Object, error) {
	known, err := c.known(kind, namespace, name)
	if err == nil && string(known.GetUID()) == uid {
		return known, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	options := metav1.GetOptions{}
	switch kind {
	case "ServiceAccount":
		return c.client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, options)
	case "Secret":
		return c.client.CoreV1().Secrets(namespace).Get(ctx, name, options)
	case "Pod":
		return c.client.CoreV1().Pods(namespace).Get(ctx, name, options)
	default:
		return c.client.CoreV1().Nodes().Get(ctx, name, options)
	}
}

func (c *clusterObjects) known(kind, namespace, name string) (metav1.Object, error) {
	core := c.informers.Core().V1()
	switch kind {
	case "ServiceAccount":
		return core.ServiceAccounts().Lister().ServiceAccounts(namespace).Get(name)
	case "Secret":
		return core.Secrets().Lister().Secrets(namespace).Get(name)
	case "Pod":
		return core.Pods().Lister().Pods(namespace).Get(name)
	default:
		return core.Nodes().Lister().Get(name)
	}
}
