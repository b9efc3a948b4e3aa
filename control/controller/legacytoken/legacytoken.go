// Package legacytoken removes tokens of service accounts that were made into secrets by themselves, as they once were,
// and that nobody has used for a year: first they are no longer valid, and a year later they are gone.
package legacytoken

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-node/berth/control/controller"
)

const (
	// unused is how long nobody has to use a token.
	unused = 365 * 24 * time.Hour
	// lookAgain is when tokens that may be old are looked at again: dates have no hours.
	lookAgain = 24 * time.Hour
	day       = "2006-01-02"
	lastUsed  = "kubernetes.io/legacy-token-last-used"
	invalid   = "kubernetes.io/legacy-token-invalid-since"
	tracking  = "kube-apiserver-legacy-service-account-token-tracking"
	trackedBy = "since"
)

type cleaner struct {
	client   kubernetes.Interface
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	now      func() time.Time
}

// New makes the controller.
func New(client kubernetes.Interface, informers coreinformers.Interface, log *slog.Logger) controller.Controller {
	c := &cleaner{client, informers.Secrets().Lister(), informers.ServiceAccounts().Lister(), informers.Pods().Lister(), time.Now}
	return controller.NewLoop(log, 1, c.sync).
		Watch(informers.ServiceAccounts().Informer(), nothing).
		Watch(informers.Pods().Informer(), nothing).
		Watch(informers.Secrets().Informer(), func(o any) []cache.ObjectName {
			if s, ok := o.(*corev1.Secret); ok && s.Type == corev1.SecretTypeServiceAccountToken {
				return []cache.ObjectName{cache.MetaObjectToName(s)}
			}
			return nil
		})
}

// nothing has a kind be waited for: its cache is read.
func nothing(any) []cache.ObjectName { return nil }

func (c *cleaner) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	s, err := c.secrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("find secret %s: %w", key, err)
	}
	if s.Type != corev1.SecretTypeServiceAccountToken || !c.automatic(s) {
		return 0, nil
	}
	if used, err := c.mounted(s); used || err != nil {
		return lookAgain, err
	}
	since, err := c.since(ctx)
	if err != nil || since.IsZero() {
		return lookAgain, err
	}
	what, left := fate(s, since, c.now())
	switch what {
	case stays:
		return left, nil
	case ends:
		return unused, c.patch(ctx, s, c.now().UTC().Format(day))
	case returns:
		return lookAgain, c.patch(ctx, s, nil)
	}
	err = c.client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("remove secret %s: %w", key, err)
	}
	return 0, nil
}

// What becomes of a token.
const (
	stays   = iota
	ends    // it is no longer valid
	returns // it was used since it was not: who has it valid again wants it
	goes
)

// fate is what becomes of a token, and when to look again at one that stays. Whether a token was used is known since
// the API server has kept account of it.
func fate(s *corev1.Secret, since, now time.Time) (int, time.Duration) {
	last := since
	for _, at := range []time.Time{s.CreationTimestamp.Time, date(s.Labels[lastUsed])} {
		if at.After(last) {
			last = at
		}
	}
	from := date(s.Labels[invalid])
	if from.IsZero() {
		if left := last.Add(unused).Sub(now); left > 0 {
			return stays, min(left+time.Second, lookAgain)
		}
		return ends, 0
	}
	if used := date(s.Labels[lastUsed]); used.After(from) {
		return returns, 0
	}
	if left := from.Add(unused).Sub(now); left > 0 {
		return stays, min(left+time.Second, lookAgain)
	}
	return goes, 0
}

func date(text string) time.Time {
	at, err := time.Parse(day, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// automatic says whether a secret was made for an account by itself: the account names it.
func (c *cleaner) automatic(s *corev1.Secret) bool {
	a, err := c.accounts.ServiceAccounts(s.Namespace).Get(s.Annotations[corev1.ServiceAccountNameKey])
	if err != nil || string(a.UID) != s.Annotations[corev1.ServiceAccountUIDKey] {
		return false
	}
	return slices.ContainsFunc(a.Secrets, func(r corev1.ObjectReference) bool { return r.Name == s.Name })
}

func (c *cleaner) mounted(s *corev1.Secret) (bool, error) {
	all, err := c.pods.Pods(s.Namespace).List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("list pods: %w", err)
	}
	for _, p := range all {
		for _, v := range p.Spec.Volumes {
			if v.Secret != nil && v.Secret.SecretName == s.Name {
				return true, nil
			}
		}
	}
	return false, nil
}

// since is from when on the API server has kept account of the use of tokens; zero: it does not.
func (c *cleaner) since(ctx context.Context) (time.Time, error) {
	m, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, tracking, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read ConfigMap %s: %w", tracking, err)
	}
	return date(m.Data[trackedBy]), nil
}

func (c *cleaner) patch(ctx context.Context, s *corev1.Secret, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": s.UID, "resourceVersion": s.ResourceVersion, "labels": map[string]any{invalid: value},
	}})
	if err == nil {
		_, err = c.client.CoreV1().Secrets(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write secret %s/%s: %w", s.Namespace, s.Name, err)
	}
	return nil
}
