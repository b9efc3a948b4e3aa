package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	streamhttp "k8s.io/streaming/pkg/httpstream"
	streamspdy "k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berth-node/berth/agent/api"
)

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
