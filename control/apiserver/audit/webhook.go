package audit

import (
	"log/slog"
	"time"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditwebhook "k8s.io/apiserver/plugin/pkg/audit/webhook"
)

// batching is kube-apiserver's.
func batching() buffered.BatchConfig {
	return buffered.BatchConfig{
		BufferSize: mostEvents, MaxBatchSize: 400, MaxBatchWait: 30 * time.Second,
		ThrottleEnable: true, ThrottleQPS: 10, ThrottleBurst: 15,
		AsyncDelegate: true,
	}
}

// webhookBackend sends events in batches, each tried five times. It holds back what comes when too much is waiting,
// until the receiver has taken that or all tries have failed.
type webhookBackend struct {
	audit.Backend
	held *hold
	last time.Duration
	log  *slog.Logger
}

func newWebhook(kubeconfig string, log *slog.Logger) (audit.Backend, error) {
	backoff := webhook.DefaultRetryBackoffWithInitialDelay(auditwebhook.DefaultInitialBackoffDelay)
	b, err := auditwebhook.NewBackend(kubeconfig, auditv1.SchemeGroupVersion, backoff, nil)
	if err != nil {
		return nil, err
	}
	return newWebhookBackend(b, lastWait, log), nil
}

func newWebhookBackend(next audit.Backend, last time.Duration, log *slog.Logger) *webhookBackend {
	held := &hold{}
	return &webhookBackend{buffered.NewBackend(&giver{next, held}, batching()), held, last, log}
}

// ProcessEvents implements [audit.Backend].
func (b *webhookBackend) ProcessEvents(events ...*auditapi.Event) bool {
	for _, e := range events {
		if b.held.take(e) {
			b.Backend.ProcessEvents(e)
		} else {
			audit.HandlePluginError(auditwebhook.PluginName, errBehind, e)
		}
	}
	return true
}

// Shutdown implements [audit.Backend]. It sends what is left, but does not wait minutes for a receiver that hangs.
func (b *webhookBackend) Shutdown() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Backend.Shutdown()
	}()
	select {
	case <-done:
	case <-time.After(b.last):
		b.log.Error("audit events are lost: the webhook did not take them in time", "events", b.held.events.Load())
	}
}

// giver counts events out when they have been sent, or given up.
type giver struct {
	audit.Backend
	held *hold
}

// ProcessEvents implements [audit.Backend].
func (g *giver) ProcessEvents(events ...*auditapi.Event) bool {
	defer func() {
		for _, e := range events {
			g.held.give(e)
		}
	}()
	return g.Backend.ProcessEvents(events...)
}
