package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// LogOptions says which part of a log is wanted.
type LogOptions struct {
	Follow, Previous, Timestamps bool
	Tail                         int64         // negative: all
	Since                        time.Duration // 0: all
	SinceTime                    string
	Limit                        int64
}

// Logs copies the log of a container to w.
func (c *Client) Logs(ctx context.Context, key types.NamespacedName, container string, o LogOptions,
	w io.Writer,
) error {
	q := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			q.Set(name, "true")
		}
	}
	if o.Tail >= 0 {
		q.Set("tailLines", fmt.Sprint(o.Tail))
	}
	if o.Since > 0 {
		q.Set("sinceTime", time.Now().Add(-o.Since).Format(time.RFC3339Nano))
	}
	if o.SinceTime != "" {
		q.Set("sinceTime", o.SinceTime)
	}
	if o.Limit > 0 {
		q.Set("limitBytes", fmt.Sprint(o.Limit))
	}
	resp, err := c.Do(ctx, http.MethodGet, podPath("containerLogs", key)+"/"+url.PathEscape(container), q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("read log: %w", err)
	}
	return nil
}
