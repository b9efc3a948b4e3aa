package registry

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
)

// logREST streams what a container has written.
type logREST struct{ to *targets }

// New implements [rest.Storage].
func (*logREST) New() runtime.Object { return &corev1.Pod{} }

// Destroy implements [rest.Storage].
func (*logREST) Destroy() {}

// ProducesMIMETypes implements [rest.StorageMetadata].
func (*logREST) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject implements [rest.StorageMetadata].
func (*logREST) ProducesObject(string) any { return "" }

// NewGetOptions implements [rest.GetterWithOptions].
func (*logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}

// OverrideMetricsVerb implements [rest.MetricsVerbOverrider]: a log is connected to, whatever the method.
func (*logREST) OverrideMetricsVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

// Get implements [rest.GetterWithOptions].
func (l *logREST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	o, ok := options.(*corev1.PodLogOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not PodLogOptions: %T", options))
	}
	if p, err := l.to.pod(ctx, name); err == nil && p.Spec.NodeName == "" {
		return &genericrest.LocationStreamer{ContentType: "text/plain"}, nil // it has written nothing yet
	}
	t, err := l.to.container(ctx, "containerLogs", name, o.Container, logQuery(o))
	if err != nil {
		return nil, err
	}
	transport := t.transport
	return &genericrest.LocationStreamer{
		Location: t.url, Transport: transport, ContentType: "text/plain", Flush: o.Follow,
		ResponseChecker:             genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), name),
		RedirectChecker:             genericrest.PreventRedirects,
		TLSVerificationErrorCounter: nil,
	}, nil
}

func logQuery(o *corev1.PodLogOptions) url.Values {
	q := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			q.Set(name, "true")
		}
	}
	if o.SinceSeconds != nil {
		q.Set("sinceSeconds", strconv.FormatInt(*o.SinceSeconds, 10))
	}
	if o.SinceTime != nil {
		q.Set("sinceTime", o.SinceTime.Format(time.RFC3339))
	}
	if o.TailLines != nil {
		q.Set("tailLines", strconv.FormatInt(*o.TailLines, 10))
	}
	if o.LimitBytes != nil {
		q.Set("limitBytes", strconv.FormatInt(*o.LimitBytes, 10))
	}
	if o.Stream != nil && *o.Stream != corev1.LogStreamAll {
		q.Set("stream", *o.Stream)
	}
	return q
}
