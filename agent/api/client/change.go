package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// AddEphemeral adds a container to a pod that runs, and returns the pod with it.
func (c *Client) AddEphemeral(ctx context.Context, p *corev1.Pod, e *corev1.EphemeralContainer) (*corev1.Pod, error) {
	return c.patch(ctx, p, "ephemeralcontainers", map[string]any{"spec": map[string]any{"ephemeralContainers": []any{e}}})
}

// SetConditions sets conditions of a pod's status, and removes those of the types in remove.
func (c *Client) SetConditions(ctx context.Context, p *corev1.Pod, set []corev1.PodCondition,
	remove []string,
) (*corev1.Pod, error) {
	list := []any{}
	for _, one := range set {
		list = append(list, one)
	}
	for _, t := range remove {
		list = append(list, map[string]string{"$patch": "delete", "type": t})
	}
	return c.patch(ctx, p, "status", map[string]any{"status": map[string]any{"conditions": list}})
}

// patch changes a subresource of that very pod, not of one that has come in its place.
func (c *Client) patch(ctx context.Context, p *corev1.Pod, subresource string, change map[string]any) (*corev1.Pod,
	error,
) {
	change["metadata"] = map[string]any{"uid": p.UID}
	data, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("encode patch: %w", err)
	}
	key := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	resp, err := c.send(ctx, http.MethodPatch, podPath("pods", key)+"/"+subresource, nil, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out := &corev1.Pod{}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	return out, nil
}
