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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
	way := answering{next: t, runDir: runDir, quiet: quiet, patience: patience}
	return &Client{runDir: runDir, dial: t, http: &http.Client{Transport: way}}
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
