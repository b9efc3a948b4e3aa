// Package accounttoken fills secrets of the type kubernetes.io/service-account-token, which somebody makes for a
// service account, with a token that has no end, and removes those whose account is gone.
package accounttoken

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const workers = 2

// Bundle is the authorities of the API server, in PEM. While one is replaced, they are both.
type Bundle interface {
	CurrentCABundleContent() []byte
}

// Sign makes the token of a service account that a secret keeps.
type Sign func(account *corev1.ServiceAccount, secret string) (string, error)

// Config is what the controller works with. All is required.
type Config struct {
	// Client has all rights: whoever makes tokens of anybody has the rights of everybody.
	Client kubernetes.Interface
	Sign   Sign
	Bundle Bundle
	// Subscribe has the bundle's change told of.
	Subscribe func(func())
	Log       *slog.Logger
}

type keeper struct {
	cfg      Config
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	loop     *controller.Loop[cache.ObjectName]
}

// New makes the controller.
func New(c Config, informers coreinformers.Interface) controller.Controller {
	secrets, accounts := informers.Secrets(), informers.ServiceAccounts()
	k := &keeper{cfg: c, secrets: secrets.Lister(), accounts: accounts.Lister()}
	k.loop = controller.NewLoop(c.Log, workers, k.sync).
		Watch(secrets.Informer(), func(o any) []cache.ObjectName {
			if s, ok := o.(*corev1.Secret); ok && s.Type == corev1.SecretTypeServiceAccountToken {
				return []cache.ObjectName{cache.MetaObjectToName(s)}
			}
			return nil
		}).
		WatchChanges(accounts.Informer(), k.ofAccount)
	c.Subscribe(func() { k.add(metav1.NamespaceAll, "") })
	return k.loop
}

// ofAccount are the secrets of an account that is new or gone. What else changes of it is nothing to its tokens.
func (k *keeper) ofAccount(before, after any) []cache.ObjectName {
	if before != nil && after != nil && before.(*corev1.ServiceAccount).UID == after.(*corev1.ServiceAccount).UID {
		return nil
	}
	var all []cache.ObjectName
	for _, o := range []any{before, after} {
		if a, ok := o.(*corev1.ServiceAccount); ok {
			all = append(all, k.kept(a.Namespace, a.Name)...)
		}
	}
	return all
}

// kept are the secrets with tokens of an account; of any, if it is "".
func (k *keeper) kept(namespace, account string) []cache.ObjectName {
	list, err := k.secrets.Secrets(namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister of what is in memory does not fail
	}
	var all []cache.ObjectName
	for _, s := range list {
		if s.Type == corev1.SecretTypeServiceAccountToken && (account == "" || s.Annotations[corev1.ServiceAccountNameKey] == account) {
			all = append(all, cache.MetaObjectToName(s))
		}
	}
	return all
}

func (k *keeper) add(namespace, account string) {
	for _, key := range k.kept(namespace, account) {
		k.loop.Add(key)
	}
}

func (k *keeper) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	s, err := k.secrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find secret %s: %w", key, err)
	}
	name := s.Annotations[corev1.ServiceAccountNameKey]
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil || name == "" {
		return 0, nil
	}
	account, err := k.account(ctx, s.Namespace, name, s.Annotations[corev1.ServiceAccountUIDKey])
	if err != nil {
		return 0, fmt.Errorf("find service account %s/%s: %w", s.Namespace, name, err)
	}
	if account == nil {
		return 0, k.remove(ctx, s)
	}
	full, err := k.filled(s, account)
	if err != nil || full == nil {
		return 0, err
	}
	// The version is that of the secret that was looked at: nobody's change is lost.
	_, err = k.cfg.Client.CoreV1().Secrets(s.Namespace).Update(ctx, full, metav1.UpdateOptions{})
	if err != nil && !controller.Ended(err) {
		return 0, fmt.Errorf("fill secret %s: %w", key, err)
	}
	return 0, nil
}

// account is the one that a secret names; nil when it is gone, or another one has its name. The server is asked where
// the cache does not have it: who makes an account and its secret at once is not to lose the secret.
func (k *keeper) account(ctx context.Context, namespace, name, uid string) (*corev1.ServiceAccount, error) {
	is := func(a *corev1.ServiceAccount, err error) bool {
		return err == nil && (uid == "" || string(a.UID) == uid)
	}
	a, err := k.accounts.ServiceAccounts(namespace).Get(name)
	if is(a, err) {
		return a, nil
	}
	a, err = k.cfg.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	if is(a, err) {
		return a, nil
	}
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return nil, err
}

func (k *keeper) remove(ctx context.Context, s *corev1.Secret) error {
	err := k.cfg.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove secret %s/%s, whose service account is gone: %w", s.Namespace, s.Name, err)
	}
	return nil
}

// filled is a secret with all that belongs into it; nil when it has all.
func (k *keeper) filled(s *corev1.Secret, account *corev1.ServiceAccount) (*corev1.Secret, error) {
	ca, namespace := k.cfg.Bundle.CurrentCABundleContent(), []byte(s.Namespace)
	token := s.Data[corev1.ServiceAccountTokenKey]
	if len(token) > 0 && bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], ca) &&
		bytes.Equal(s.Data[corev1.ServiceAccountNamespaceKey], namespace) && s.Annotations[corev1.ServiceAccountUIDKey] == string(account.UID) {
		return nil, nil
	}
	if len(token) == 0 {
		made, err := k.cfg.Sign(account, s.Name)
		if err != nil {
			return nil, fmt.Errorf("make token for secret %s/%s: %w", s.Namespace, s.Name, err)
		}
		token = []byte(made)
	}
	s = s.DeepCopy()
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	s.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	s.Data[corev1.ServiceAccountTokenKey] = token
	s.Data[corev1.ServiceAccountRootCAKey] = slices.Clone(ca)
	s.Data[corev1.ServiceAccountNamespaceKey] = namespace
	return s, nil
}
