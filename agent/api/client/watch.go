package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// WatchPods calls fn with every pod there is and then with every change, until ctx ends or the agent does.
func (c *Client) WatchPods(ctx context.Context, ns string, fn func(watch.EventType, *corev1.Pod) error) error {
	return c.WatchPodsFrom(ctx, ns, func() error { return nil }, fn)
}

// WatchPodsFrom is [Client.WatchPods] that calls begun first, when nothing that happens from then on is missed any
// more. An error of begun ends it.
func (c *Client) WatchPodsFrom(ctx context.Context, ns string, begun func() error,
	fn func(watch.EventType, *corev1.Pod) error,
) error {
	return follow(ctx, c, "/pods", values("watch", "1", "namespace", ns), begun, fn)
}

// WatchEvents is [Client.WatchPods] for events.
func (c *Client) WatchEvents(ctx context.Context, ns string, uid types.UID,
	fn func(watch.EventType, *corev1.Event) error,
) error {
	return c.WatchEventsFrom(ctx, ns, uid, func() error { return nil }, fn)
}

// WatchEventsFrom is [Client.WatchPodsFrom] for events.
func (c *Client) WatchEventsFrom(ctx context.Context, ns string, uid types.UID, begun func() error,
	fn func(watch.EventType, *corev1.Event) error,
) error {
	return follow(ctx, c, "/events", values("watch", "1", "namespace", ns, "uid", string(uid)), begun, fn)
}

func follow[T any](ctx context.Context, c *Client, path string, q url.Values, begun func() error,
	fn func(watch.EventType, *T) error,
) error {
	resp, err := c.Do(ctx, http.MethodGet, path, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if err := begun(); err != nil {
		return err
	}
	for dec := json.NewDecoder(resp.Body); ; {
		var ev struct {
			Type   watch.EventType `json:"type"`
			Object *T              `json:"object"`
		}
		if err := dec.Decode(&ev); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("the agent has ended the connection: %w", err)
		}
		if ev.Object == nil {
			return fmt.Errorf("decode answer: %q without an object", ev.Type)
		}
		if err := fn(ev.Type, ev.Object); err != nil {
			return err
		}
	}
}
