// Package client talks to the API of an agent on this machine.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	streamhttp "k8s.io/streaming/pkg/httpstream"
	streamspdy "k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berth-node/berth/agent/api"
	"github.com/berth-node/berth/agent/api/socket"
	"github.com/berth-node/berth/agent/pod"
)

// ErrNoAgent says that no agent answers in the run directory.
var ErrNoAgent = errors.New("no agent answers")

// Error is what the agent answered instead of what was asked for.
type Error struct {
	Code    int
	Message string
}

func (e *Error) Error() string { return e.Message }

// Client is a client of one agent.
type Client struct {
	runDir string
	http   *http.Client
	dial   *http.Transport
}

// host stands where a host's name must be; connections go to the socket whatever it says.
const host = "http://berth"

// New returns a client of the agent that has the run directory.
func New(runDir string) *Client {
	t := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx, runDir)
	}}
	return &Client{runDir: runDir, dial: t, http: &http.Client{Transport: t}}
}

func dial(ctx context.Context, runDir string) (net.Conn, error) {
	path := filepath.Join(runDir, socket.Name)
	addr, done, err := socket.Address(runDir)
	var conn net.Conn
	if err == nil {
		conn, err = (&net.Dialer{}).DialContext(ctx, "unix", addr)
		done()
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w in %s (is 'berth agent' running? --run-dir or BERTH_RUN_DIR says where)", ErrNoAgent,
			runDir)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: only root may talk to the agent", path)
	case err != nil:
		return nil, fmt.Errorf("connect to the agent: %w", err)
	}
	return conn, nil
}

// HTTP returns the client below, for parts of the API that are served by others. Their host is "berth".
func (c *Client) HTTP() *http.Client { return c.http }

// Do sends a request and turns an answer that is a failure into an [Error].
func (c *Client) Do(ctx context.Context, method, path string, q url.Values) (*http.Response, error) {
	return c.send(ctx, method, path, q, nil)
}

func (c *Client) send(ctx context.Context, method, path string, q url.Values, body io.Reader) (*http.Response, error) {
	u := host + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, err
	}
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/strategic-merge-patch+json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		// Whatever the URL was, it tells nothing to people.
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, failure(resp)
	}
	return resp, nil
}

func failure(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	var st metav1.Status
	if err := json.Unmarshal(b, &st); err != nil || st.Message == "" {
		st.Message = strings.TrimSpace(string(b))
	}
	if st.Message == "" {
		st.Message = resp.Status
	}
	return &Error{Code: resp.StatusCode, Message: st.Message}
}

func (c *Client) get(ctx context.Context, path string, q url.Values, v any) (http.Header, error) {
	resp, err := c.Do(ctx, http.MethodGet, path, q)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return nil, fmt.Errorf("decode answer: %w", err)
	}
	return resp.Header, nil
}

// Healthy returns nil when the agent is well.
func (c *Client) Healthy(ctx context.Context) error {
	resp, err := c.Do(ctx, http.MethodGet, "/healthz", nil)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// Pods lists the pods of a namespace, "" for all.
func (c *Client) Pods(ctx context.Context, ns string) ([]corev1.Pod, error) {
	var list corev1.PodList
	_, err := c.get(ctx, "/pods", values("namespace", ns), &list)
	return list.Items, err
}

// Pod returns one pod and the manifest that asks for it.
func (c *Client) Pod(ctx context.Context, key types.NamespacedName) (*corev1.Pod, string, error) {
	p := &corev1.Pod{}
	h, err := c.get(ctx, podPath("pods", key), nil, p)
	if err != nil {
		return nil, "", err
	}
	return p, h.Get(api.ManifestHeader), nil
}

// Delete asks the agent to delete a pod.
func (c *Client) Delete(ctx context.Context, key types.NamespacedName) error {
	resp, err := c.Do(ctx, http.MethodDelete, podPath("pods", key), nil)
	if err == nil {
		resp.Body.Close()
	}
	return err
}

// Events lists the events of a namespace, "" for all, and of one object when uid is not empty.
func (c *Client) Events(ctx context.Context, ns string, uid types.UID) ([]corev1.Event, error) {
	var list corev1.EventList
	_, err := c.get(ctx, "/events", values("namespace", ns, "uid", string(uid)), &list)
	return list.Items, err
}

// Timing returns what the pod's last start was spent on.
func (c *Client) Timing(ctx context.Context, key types.NamespacedName) (*pod.Span, error) {
	s := &pod.Span{}
	_, err := c.get(ctx, podPath("timing", key), nil, s)
	return s, err
}

// Problems returns what is wrong with manifests.
func (c *Client) Problems(ctx context.Context) ([]api.Problem, error) {
	var p []api.Problem
	_, err := c.get(ctx, "/problems", nil, &p)
	return p, err
}

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

// Exec runs a command in a container, or attaches to the container's own process when there is none. An error of the
// kind exec.CodeExitError of client-go carries the exit code of the command. Without a word of how it ended, it is
// [api.ErrNoStatus].
func (c *Client) Exec(ctx context.Context, key types.NamespacedName, container string, command []string,
	o remotecommand.StreamOptions,
) error {
	path, q := "attach", url.Values{}
	if len(command) > 0 {
		path = "exec"
		q["command"] = command
	}
	for name, on := range map[string]bool{"input": o.Stdin != nil, "output": o.Stdout != nil, "error": o.Stderr != nil &&
		!o.Tty, "tty": o.Tty} {
		if on {
			q.Set(name, "1")
		}
	}
	u, err := url.Parse(host + podPath(path, key) + "/" + url.PathEscape(container) + "?" + q.Encode())
	if err != nil {
		return err
	}
	transport, err := c.upgrader()
	if err != nil {
		return err
	}
	if err := api.Command(ctx, transport, u, o); transport.failed == nil {
		return err
	}
	return transport.failed
}

// Dialer opens connections over which ports of a pod are forwarded.
func (c *Client) Dialer(key types.NamespacedName) (streamhttp.Dialer, error) {
	transport, err := c.upgrader()
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(host + podPath("portForward", key))
	if err != nil {
		return nil, err
	}
	return dialer{spdy.NewDialerForStreaming(spdy.NewUpgraderForStreaming(transport), &http.Client{Transport: transport},
		http.MethodPost, u), transport}, nil
}

type dialer struct {
	streamhttp.Dialer
	transport *upgrading
}

func (d dialer) Dial(protocols ...string) (streamhttp.Connection, string, error) {
	conn, protocol, err := d.Dialer.Dial(protocols...)
	if err != nil && d.transport.failed != nil {
		err = d.transport.failed
	}
	return conn, protocol, err
}

func (c *Client) upgrader() (*upgrading, error) {
	rt, err := streamspdy.NewRoundTripperWithConfig(streamspdy.RoundTripperConfig{
		PingPeriod:       5 * time.Second,
		UpgradeTransport: c.dial,
	})
	if err != nil {
		return nil, fmt.Errorf("prepare stream: %w", err)
	}
	return &upgrading{UpgradeRoundTripper: rt}, nil
}

// upgrading turns an answer that is no upgrade into an [Error], as every other failure of the API is. It keeps what
// failed, because the streaming libraries pass on only the text of it.
type upgrading struct {
	streamhttp.UpgradeRoundTripper
	failed error
}

func (u *upgrading) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := u.UpgradeRoundTripper.RoundTrip(r)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		defer resp.Body.Close()
		err = failure(resp)
	}
	if err != nil {
		u.failed = err
		return nil, err
	}
	return resp, nil
}

func podPath(verb string, key types.NamespacedName) string {
	return "/" + verb + "/" + url.PathEscape(key.Namespace) + "/" + url.PathEscape(key.Name)
}

// values makes a query of names and values, leaving out what is empty.
func values(kv ...string) url.Values {
	q := url.Values{}
	for i := 0; i < len(kv); i += 2 {
		if kv[i+1] != "" {
			q.Set(kv[i], kv[i+1])
		}
	}
	return q
}
