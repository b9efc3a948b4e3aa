// Package etcd is the cluster's store: a member of etcd in this process, or the user's own servers, and a client of it.
//
// The member listens on a unix socket in a directory of its own and on no port. It syncs each write before it
// acknowledges it.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"

	"github.com/berth-node/berth/internal/atomicfile"
)

const (
	// quota is where etcd refuses to grow, in bytes, raises its alarm and takes only what makes it smaller. More than
	// 8 GiB etcd's documentation warns of.
	quota = 8 << 30
	// maxRequest bounds one request, in bytes. The API server takes objects of 3 MiB, and etcd's own default is half.
	maxRequest = 4 << 20
	// startTimeout is how long the member may take to read its log and to elect itself.
	startTimeout = 60 * time.Second
	// stopTimeout is how long the end of the member is waited for. All that was acknowledged is on the disk before.
	stopTimeout = 15 * time.Second
	dialTimeout = 20 * time.Second
	// maxSocketPath is what the kernel's sockaddr_un holds, less the zero at its end.
	maxSocketPath = 107
	// memberName and peerHost name a cluster of one member, which no other one ever reaches.
	memberName   = "berth"
	peerHost     = "berth.invalid:2380"
	clusterToken = "berth"
)

// Member is an etcd in this process.
type Member struct {
	etcd   *embed.Etcd
	socket string
}

// Start starts the member whose data is in dir, and waits until it serves. A directory that is empty becomes a new
// cluster of this one member; a restore that was killed when its store was whole is ended first. The socket is below
// runDir, which only this user may enter.
func Start(ctx context.Context, dir, runDir string, log *slog.Logger) (*Member, error) {
	socket := SocketPath(runDir)
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("start etcd: the path of its socket %s has %d bytes and may have %d: use a shorter data directory",
			socket, len(socket), maxSocketPath)
	}
	if err := settle(dir); err != nil {
		return nil, err
	}
	for _, d := range []string{dir, runDir} {
		if err := atomicfile.MkdirSynced(d, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of etcd: %w", err)
		}
		if err := os.Chmod(d, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of etcd: %w", err)
		}
	}
	e, err := begin(configure(dir, socket, log))
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w; its data is in %s", err, dir)
	}
	m := &Member{e, socket}
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	select {
	case <-e.Server.ReadyNotify():
		return m, nil
	case err := <-e.Err():
		m.Stop()
		return nil, fmt.Errorf("start etcd: %w", err)
	case <-ctx.Done():
		m.Stop()
		return nil, fmt.Errorf("start etcd: %w", ctx.Err())
	case <-deadline.C:
		m.Stop()
		return nil, fmt.Errorf("start etcd: not ready within %s: where the disk is well, its data in %s has lost its end, "+
			"and a copy or a snapshot has to take its place", startTimeout, dir)
	}
}

// begin starts the library, which panics where a file is not what it has written.
func begin(c *embed.Config) (e *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("read data: it is damaged: %v", r)
		}
	}()
	return embed.StartEtcd(c)
}

func configure(dir, socket string, log *slog.Logger) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = memberName, dir
	peer, client := peerURL(), url.URL{Scheme: "unix", Path: socket}
	c.ListenPeerUrls = nil // there is no other member to listen to
	c.AdvertisePeerUrls = []url.URL{peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.InitialCluster, c.InitialClusterToken = initialCluster(), clusterToken
	// Nobody else can be elected: the first election need not wait for others to be heard of.
	c.TickMs, c.ElectionMs = 100, 500
	c.QuotaBackendBytes, c.MaxRequestBytes = quota, maxRequest
	// The API server compacts every five minutes. Where it does not, an hour of history is enough for anybody.
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	c.WatchProgressNotifyInterval = 5 * time.Second
	c.EnableGRPCGateway = false
	// A snapshot of the log keeps this many entries in memory for members that are behind.
	c.SnapshotCatchUpEntries = 100
	c.SnapshotCount = 10_000
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZap(log))
	return c
}

// peerURL is where others would reach the member.
func peerURL() url.URL { return url.URL{Scheme: "http", Host: peerHost} }

// initialCluster is the cluster of the one member.
func initialCluster() string { u := peerURL(); return memberName + "=" + u.String() }

// SocketPath is the member's socket in a run directory.
func SocketPath(runDir string) string { return filepath.Join(runDir, "etcd.sock") }

// Endpoint is what clients of the member dial.
func (m *Member) Endpoint() string { return Endpoint(m.socket) }

// Endpoint is what clients of a socket dial.
func Endpoint(socket string) string { return "unix://" + socket }

// Failed has the error with which the member ended by itself.
func (m *Member) Failed() <-chan error { return m.etcd.Err() }

// Stop ends the member, with what it has acknowledged on the disk. It waits for a while only: a member that has never
// become ready waits for itself, for minutes.
func (m *Member) Stop() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.etcd.Close()
	}()
	limit := time.NewTimer(stopTimeout)
	defer limit.Stop()
	select {
	case <-done:
	case <-limit.C:
	}
}

// Servers is where the store is, and how to be known there.
type Servers struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
}

// Connect makes a client. It does not wait for the servers: each call has a deadline of its own.
func Connect(s Servers, log *slog.Logger) (*clientv3.Client, error) {
	if len(s.Endpoints) == 0 {
		return nil, errors.New("connect to etcd: no endpoints")
	}
	c := clientv3.Config{
		Endpoints: s.Endpoints, DialTimeout: dialTimeout,
		DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		MaxCallSendMsgSize: maxRequest, MaxCallRecvMsgSize: 1<<31 - 1, // a list is one answer
		DialOptions: []grpc.DialOption{grpc.WithDisableServiceConfig()},
		Logger:      newZap(log),
	}
	if s.CAFile+s.CertFile+s.KeyFile != "" {
		info := transport.TLSInfo{TrustedCAFile: s.CAFile, CertFile: s.CertFile, KeyFile: s.KeyFile}
		t, err := info.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("connect to etcd: %w", err)
		}
		c.TLS = t
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return client, nil
}
