package pod

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/agent/pod/spec"
)

// hookOutput is how much of what a hook has said becomes part of its error.
const hookOutput = 512

// Bounds of the answer to a hook's question, in bytes: the container that is asked gives it. What is read of a body is
// read for politeness.
const (
	hookHeader = 64 << 10
	hookBody   = 10 << 10
)

// hookRedirects is how many redirections a hook follows.
const hookRedirects = 10

// target is the container that a hook belongs to.
type target struct {
	id  string
	c   *corev1.Container
	ips []string
}

// workerKey is where a step's context has that of its worker, which no order to the pod ends.
type workerKey struct{}

// workerContext returns a context for what a step must not leave half done when its pod is ordered to end.
func workerContext(ctx context.Context) context.Context {
	outer, ok := ctx.Value(workerKey{}).(context.Context)
	if !ok {
		return ctx
	}
	return trace.ContextWithSpan(outer, trace.SpanFromContext(ctx))
}

// runHook runs a postStart or preStop hook and waits for its end, which ctx can bring about.
func runHook(ctx context.Context, rt Containers, h *corev1.LifecycleHandler, t target) error {
	switch {
	case h.Exec != nil:
		return execHook(ctx, rt, h.Exec.Command, t.id)
	case h.HTTPGet != nil:
		return httpHook(ctx, h.HTTPGet, t)
	case h.Sleep != nil:
		timer := time.NewTimer(spec.Seconds(h.Sleep.Seconds))
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		}
	}
	return errors.New("its handler is not known")
}

func execHook(ctx context.Context, rt Containers, command []string, id string) error {
	req := &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: command}
	if deadline, ok := ctx.Deadline(); ok {
		// The runtime ends the command by itself, so that it ends with this process too.
		req.Timeout = int64(max(time.Until(deadline).Round(time.Second)/time.Second, 1))
	}
	r, err := rt.ExecSync(wantOutput(ctx, hookOutput+1), req)
	if err != nil {
		return fmt.Errorf("run %q: %w", strings.Join(command, " "), err)
	}
	if r.GetExitCode() == 0 {
		return nil
	}
	said := string(output(r, hookOutput))
	if len(r.GetStdout())+len(r.GetStderr()) > hookOutput {
		said += "..."
	}
	return fmt.Errorf("command %q exited with %d: %s", strings.Join(command, " "), r.GetExitCode(),
		strings.TrimSpace(said))
}

// wantOutput tells the runtime that no more than most bytes of a command's output are of use. It is metadata beside the
// CRI's request: the embedded runtime keeps no more than that in memory, and others do not look at it.
func wantOutput(ctx context.Context, most int) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "berth-exec-output", strconv.Itoa(most))
}

// output is the beginning of what a command has written, which the runtime may have sent more of.
func output(r *runtimeapi.ExecSyncResponse, most int) []byte {
	out, complaint := r.GetStdout(), r.GetStderr()
	out = out[:min(len(out), most)]
	return slices.Concat(out, complaint[:min(len(complaint), most-len(out))])
}

// httpHook asks once. Any answer will do: it is the asking that counts.
func httpHook(ctx context.Context, h *corev1.HTTPGetAction, t target) error {
	host := h.Host
	if host == "" {
		if len(t.ips) == 0 {
			return errors.New("the pod has no address to ask at")
		}
		host = t.ips[0]
	}
	port, err := portOf(h.Port, t.c)
	if err != nil {
		return err
	}
	scheme := strings.ToLower(string(h.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	u, err := url.Parse(h.Path)
	if err != nil {
		return fmt.Errorf("parse path %q: %w", h.Path, err)
	}
	u.Scheme, u.Host = scheme, net.JoinHostPort(host, strconv.Itoa(port))
	if !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", u, err)
	}
	req.Header.Set("User-Agent", "berth-lifecycle")
	for _, x := range h.HTTPHeaders {
		if strings.EqualFold(x.Name, "Host") {
			req.Host = x.Value
			continue
		}
		req.Header.Add(x.Name, x.Value)
	}
	transport := &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: hookHeader,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: hookHeader, MaxReceiveBufferPerConnection: hookHeader},
		// A container's own certificate is not one anybody has signed.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // see above
	}
	if h.Protocol != nil && *h.Protocol == corev1.HTTPProtocolHTTP2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	client := http.Client{Transport: transport, CheckRedirect: sameHost}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", u, err)
	}
	defer resp.Body.Close()
	// What it says is of no interest, but it is polite to listen for a moment.
	_, _ = io.CopyN(io.Discard, resp.Body, hookBody)
	return nil
}

// sameHost does not follow a redirection to another host: the container has been asked, and is not to choose whom else
// the node asks.
func sameHost(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Hostname() != via[0].URL.Hostname():
		return http.ErrUseLastResponse
	case len(via) >= hookRedirects:
		return fmt.Errorf("stopped after %d redirects", hookRedirects)
	}
	return nil
}

// portOf resolves a port that may be the name of one of the container's.
func portOf(p intstr.IntOrString, c *corev1.Container) (int, error) {
	if p.Type == intstr.Int {
		return int(p.IntVal), nil
	}
	for _, have := range c.Ports {
		if have.Name == p.StrVal {
			return int(have.ContainerPort), nil
		}
	}
	if n, err := strconv.Atoi(p.StrVal); err == nil && n > 0 && n < 1<<16 {
		return n, nil
	}
	return 0, fmt.Errorf("container %s has no port %q", c.Name, p.StrVal)
}
