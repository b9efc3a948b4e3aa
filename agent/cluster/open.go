package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Config says where the API server is, as whom it is asked, and which certificates are had from there.
type Config struct {
	Kubeconfig          string
	BootstrapKubeconfig string // with which Kubeconfig is made where it is not good; "": never
	CertDir             string
	NodeName            string
	Rotate              bool // the client certificate, before it ends
	ServerBootstrap     bool // a serving certificate is asked for, too
	// Addresses are the names and addresses that the serving certificate is for.
	Addresses func() []string

	ContentType string
	QPS, Burst  int // 0: 50 and 100
	Version     string
	Observer    Observer // nil: nobody counts
	Log         *slog.Logger
}

// Observer counts what is asked, and with what.
type Observer interface {
	// Requested is told of each request: its method, the server, and the code of the answer, "<error>" where there was
	// none. took is 0 for a watch.
	Requested(method, host, code string, took time.Duration)
	// Rotated is told how old a client certificate was when another took its place.
	Rotated(lived time.Duration)
}

// host stands for the API server in URLs, since the address may change.
const host = "https://kube-apiserver"

// Open reads how the API server is reached. It asks nothing yet, and does not fail for credentials that are not there
// or not good: a node runs its static pods without, the API server may be one of them. [Client.Run] has them.
func Open(c Config) (*Client, error) { return open(c, time.Now, defaultPauses()) }

func open(c Config, now func() time.Time, p pauses) (*Client, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	m := newMember(c, now, p)
	client, err := NewClient(m.settings(m.link))
	if err != nil {
		return nil, err
	}
	client.member, m.client = m, client
	m.clean()
	m.take()
	if c.ServerBootstrap {
		m.serving = newServing(m)
	}
	return client, nil
}

// settings are those of clients of the API server.
func (m *member) settings(t transport) *rest.Config {
	return &rest.Config{
		Host: host, Transport: t, ContentConfig: rest.ContentConfig{ContentType: m.cfg.ContentType},
		QPS: float32(m.cfg.QPS), Burst: m.cfg.Burst,
		UserAgent: fmt.Sprintf("berth/%s (%s/%s)", m.cfg.Version, runtime.GOOS, runtime.GOARCH),
	}
}

// Run keeps the credentials until ctx ends: it takes a kubeconfig that was replaced, asks for certificates, and asks
// for others before they end.
func (c *Client) Run(ctx context.Context) error {
	m := c.member
	if m == nil {
		<-ctx.Done()
		return nil
	}
	var wait sync.WaitGroup
	wait.Go(func() { follow(ctx, m.log, m.watched, m.take) })
	if m.serving != nil {
		wait.Go(func() { m.serving.run(ctx) })
	}
	m.keep(ctx)
	wait.Wait()
	return nil
}

// State is how the node and its API server stand to each other.
func (c *Client) State() State {
	if c.member == nil {
		return State{Phase: Joined, Server: c.cfg.Host}
	}
	return c.member.standing.state()
}

// Serving is the serving certificate of the cluster; nil: none is asked for.
func (c *Client) Serving() *Serving {
	if c.member == nil {
		return nil
	}
	return c.member.serving
}
