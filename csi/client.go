// Package csi knows the CSI drivers of the node: it calls them over their sockets, keeps who is registered and what
// each can do, and tells who waits for one that it has come. What is done with volumes is in csi/node.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// maxAnswer bounds what a driver may answer, in bytes. Lists of volumes are the longest.
	maxAnswer = 4 << 20
	// maxHeader bounds what it may say before that.
	maxHeader = 64 << 10
	// actTimeout is how long a call may take that does something, by kubelet's rule.
	actTimeout = 2 * time.Minute
	// askTimeout is how long one may take that only asks.
	askTimeout = 10 * time.Second
	// maxSocket is the kernel's bound of a socket's path (sun_path), in bytes.
	maxSocket = 107
)

// Dialer connects to a driver that is not reached by the path of its socket.
type Dialer func(ctx context.Context) (net.Conn, error)

// Client calls one driver. Each call ends by its deadline, by the caller's or by the one of its kind, and its errors
// are [*Error].
type Client struct {
	name string
	conn *grpc.ClientConn
	log  *slog.Logger
	mets *metrics

	mu      sync.Mutex
	calls   int
	closing bool
}

// newClient returns a client that connects when somebody needs it.
func newClient(name, endpoint string, dial Dialer, m *metrics, log *slog.Logger) (*Client, error) {
	if dial == nil {
		socket, err := SocketPath(endpoint)
		if err != nil {
			return nil, err
		}
		dial = func(ctx context.Context) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
	}
	c := &Client{name: name, log: log, mets: m}
	// A driver that was restarted on its socket is to be had again soon.
	retry := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second}
	conn, err := grpc.NewClient("passthrough:///csi",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }),
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0), // an idle connection is how the end of the driver is heard of
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}),
		grpc.WithMaxHeaderListSize(maxHeader), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithUnaryInterceptor(c.call))
	if err != nil {
		return nil, fmt.Errorf("connect to CSI driver: %w", err)
	}
	c.conn = conn
	return c, nil
}

// SocketPath is the path of an endpoint: an absolute one, or unix:// with it.
func SocketPath(endpoint string) (string, error) {
	socket := strings.TrimPrefix(endpoint, "unix://")
	switch {
	case !filepath.IsAbs(socket) || strings.ContainsRune(socket, 0):
		return "", fmt.Errorf("endpoint %q: must be the absolute path of a socket", Text(endpoint))
	case len(socket) > maxSocket:
		return "", fmt.Errorf("endpoint %q: must have at most %d bytes", Text(endpoint), maxSocket)
	}
	return filepath.Clean(socket), nil
}

// Identity, Node, Controller and GroupController are the services of the driver. It need not have them all.
func (c *Client) Identity() spec.IdentityClient { return spec.NewIdentityClient(c.conn) }

// Node is the service of the node.
func (c *Client) Node() spec.NodeClient { return spec.NewNodeClient(c.conn) }

// Controller is the service that makes volumes.
func (c *Client) Controller() spec.ControllerClient { return spec.NewControllerClient(c.conn) }

// GroupController is the service for groups of volumes.
func (c *Client) GroupController() spec.GroupControllerClient {
	return spec.NewGroupControllerClient(c.conn)
}

// call is around each call.
func (c *Client) call(
	ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if err := c.enter(); err != nil {
		return &Error{Driver: c.name, Method: path.Base(method), Code: codes.Unavailable, Message: err.Error()}
	}
	defer c.leave()
	ctx, cancel := context.WithTimeout(ctx, Timeout(path.Base(method)))
	defer cancel()
	began := time.Now()
	err := invoke(ctx, method, request, answer, conn, opts...)
	took := time.Since(began)
	c.mets.observe(c.name, method, known(status.Code(err)), took)
	if err != nil {
		st := status.Convert(err)
		err = &Error{
			Driver: c.name, Method: path.Base(method), Code: known(st.Code()), Message: Text(scrub(st.Message(), request)), Unread: unread(st),
		}
	}
	if c.log.Enabled(ctx, slog.LevelDebug) {
		c.log.Debug("CSI call", "driver", c.name, "method", path.Base(method), "request", Stripped{request}.String(), "took", took, "error", err)
	}
	return err
}

// Timeout is how long a call may take at most.
func Timeout(method string) time.Duration {
	if strings.Contains(method, "Get") || strings.Contains(method, "List") || method == "Probe" {
		return askTimeout
	}
	return actTimeout
}

var errClosed = errors.New("the driver is not registered any more")

func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return errClosed
	}
	c.calls++
	return nil
}

func (c *Client) leave() {
	c.mu.Lock()
	c.calls--
	last := c.closing && c.calls == 0
	c.mu.Unlock()
	if last {
		c.conn.Close()
	}
}

// close ends the client. Calls that are under way come to their end: a driver may go on with a volume while its
// registrar is restarted.
func (c *Client) close() {
	c.mu.Lock()
	closed := c.closing
	c.closing = true
	last := !closed && c.calls == 0
	c.mu.Unlock()
	if last {
		c.conn.Close()
	}
}
