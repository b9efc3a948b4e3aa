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
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hookOutput is how much of what a hook has said becomes part of its error.
const hookOutput = 512

// target is the container that a hook belongs to.
type target struct {
	id  string
	c   *corev1.Container
	ips []string
}

// runHook runs a postStart or preStop hook and waits for its end, which ctx can bring about.
func runHook(ctx context.Context, rt Containers, h *corev1.LifecycleHandler, t target) error {
	switch {
	case h.Exec != nil:
		return execHook(ctx, rt, h.Exec.Command, t.id)
	case h.HTTPGet != nil:
		return httpHook(ctx, h.HTTPGet, t)
	case h.Sleep != nil:
		timer := time.NewTimer(time.Duration(h.Sleep.Seconds) * time.Second)
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
	r, err := rt.ExecSync(ctx, req)
	if err != nil {
		return fmt.Errorf("run %q: %w", strings.Join(command, " "), err)
	}
	if r.GetExitCode() == 0 {
		return nil
	}
	said := string(append(r.GetStdout(), r.GetStderr()...))
	if len(said) > hookOutput {
		said = said[:hookOutput] + "..."
	}
	return fmt.Errorf("command %q exited with %d: %s", strings.Join(command, " "), r.GetExitCode(), strings.TrimSpace(said))
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
		DisableKeepAlives: true,
		// A container's own certificate is not one anybody has signed.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	if h.Protocol != nil && *h.Protocol == corev1.HTTPProtocolHTTP2 {
		transport.Protocols = new(http.Protocols)
		transport.Protocols.SetUnencryptedHTTP2(true)
	}
	client := http.Client{Transport: transport}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", u, err)
	}
	defer resp.Body.Close()
	// What it says is of no interest, but it is polite to listen for a moment.
	_, _ = io.CopyN(io.Discard, resp.Body, 10<<10)
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
