package dra

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
)

// defaultFresh is how long what a driver says of a device counts when it does not say, by kubelet's rule.
const defaultFresh = 30 * time.Second

// deviceKey names a device of a driver.
type deviceKey struct{ pool, device string }

// health is what a driver has said of a device.
type health struct {
	status  corev1.ResourceHealthStatus
	message string
	until   time.Time // from then on nobody knows
}

func (h health) at(now time.Time) (corev1.ResourceHealthStatus, string) {
	if h.status == "" || now.After(h.until) {
		return corev1.ResourceHealthStatusUnknown, ""
	}
	return h.status, h.message
}

// How soon a driver is asked again that has ended its tale.
const (
	watchInitial = time.Second
	watchMax     = time.Minute
)

// watchHealth hears of the devices of a driver until ctx ends, if it tells of them.
func (s *drivers) watchHealth(ctx context.Context, p *plugin) {
	if p.health == nil {
		return
	}
	said := ""
	for delay := watchInitial; ctx.Err() == nil; delay = min(2*delay, watchMax) {
		began := time.Now()
		err := s.listen(ctx, p)
		if ctx.Err() != nil {
			return
		}
		if grpcstatus.Code(err) == codes.Unimplemented {
			s.log.Warn("DRA driver does not have the health service that it says it has", "driver", p.driver, "error", err)
			return
		}
		if text := err.Error(); text != said {
			said = text
			s.log.Warn("DRA driver has stopped telling of the health of its devices", "driver", p.driver, "error", err)
		}
		if time.Since(began) > watchMax {
			delay = watchInitial
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

func (s *drivers) listen(ctx context.Context, p *plugin) error {
	stream, err := p.health.NodeWatchResources(ctx, &healthv1.NodeWatchResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	stale := time.AfterFunc(time.Hour, func() { ring(s.changed) })
	defer stale.Stop()
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("it has ended its tale")
		}
		if err != nil {
			return err
		}
		if first := s.told(p, r, time.Now()); !first.IsZero() {
			stale.Reset(time.Until(first) + time.Millisecond)
		}
	}
}

// told takes what a driver says of its devices, and returns when the first word of it is too old. What it says no more
// of counts until then.
func (s *drivers) told(p *plugin, r *healthv1.NodeWatchResourcesResponse, now time.Time) (first time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.plugins[p.driver]; len(all) == 0 || all[len(all)-1] != p {
		return time.Time{}
	}
	known := s.health[p.driver]
	if known == nil {
		known = map[deviceKey]health{}
		s.health[p.driver] = known
	}
	changed := false
	for _, d := range r.GetDevices() {
		key := deviceKey{d.GetDevice().GetPoolName(), d.GetDevice().GetDeviceName()}
		h := healthOf(d, now)
		status, message := h.at(now)
		before, text := known[key].at(now)
		changed = changed || status != before || message != text
		known[key] = h
	}
	for key, h := range known {
		if now.After(h.until) {
			delete(known, key)
		} else if first.IsZero() || h.until.Before(first) {
			first = h.until
		}
	}
	if changed {
		ring(s.changed)
	}
	return first
}

// healthAt is how a device is by what its driver has said.
func (s *drivers) healthAt(driver string, key deviceKey, now time.Time) (corev1.ResourceHealthStatus, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.health[driver][key].at(now)
}

func healthOf(d *healthv1.DeviceHealth, now time.Time) health {
	h := health{status: corev1.ResourceHealthStatusUnknown, message: clip(d.GetMessage())}
	switch d.GetHealth() {
	case healthv1.HealthStatus_HEALTHY:
		h.status = corev1.ResourceHealthStatusHealthy
	case healthv1.HealthStatus_UNHEALTHY:
		h.status = corev1.ResourceHealthStatusUnhealthy
	}
	fresh, seen := defaultFresh, now
	if n := d.GetHealthCheckTimeoutSeconds(); n > 0 {
		fresh = time.Duration(min(n, int64(24*time.Hour/time.Second))) * time.Second
	}
	if n := d.GetLastUpdatedTime(); n > 0 {
		// It counts whole seconds, so that the present one has begun before.
		if t := time.Unix(n, 0).Add(time.Second); t.Before(now) {
			seen = t
		}
	}
	h.until = seen.Add(fresh)
	return h
}

// clip keeps a message to what the API takes.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= corev1.ResourceHealthMessageMaxLength {
		return s
	}
	return strings.ToValidUTF8(s[:corev1.ResourceHealthMessageMaxLength-3], "") + "..."
}
