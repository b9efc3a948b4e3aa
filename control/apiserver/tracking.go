package apiserver

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// trackingName is the ConfigMap that says since when the use of tokens in secrets is noted.
	trackingName = "kube-apiserver-legacy-service-account-token-tracking"
	trackingKey  = "since"
)

// ensureTracking makes the ConfigMap, and puts right one that says no day: tokens are taken to be unused from that day
// on at the earliest, so that a later one ends none too early.
func ensureTracking(ctx context.Context, client kubernetes.Interface, now time.Time) error {
	maps := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	today := now.UTC().Format(time.DateOnly)
	has, err := maps.Get(ctx, trackingName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trackingName}, Data: map[string]string{trackingKey: today},
		}, metav1.CreateOptions{})
	case err == nil:
		if _, wrong := time.Parse(time.DateOnly, has.Data[trackingKey]); wrong != nil {
			has = has.DeepCopy()
			has.Data = map[string]string{trackingKey: today}
			_, err = maps.Update(ctx, has, metav1.UpdateOptions{})
		}
	}
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("say since when the use of tokens in secrets is noted: %w", err)
	}
	return nil
}
