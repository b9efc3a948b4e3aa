// Package etcd is the cluster's store: a member of etcd in this process, or the user's own servers, and a client of it.
//
// The member listens on a unix socket in a directory of its own, and on ports only where it has, or may have, others
// beside it. It syncs each write before it acknowledges it.
package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
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
	// commitEvery is how often what was written goes from the log, which is synced before it is acknowledged, to the
	// database. etcd's own tenth of a second wakes a process that has nothing to write ten times a second, too. What is
	// not there yet after a crash is read from the log.
	commitEvery = 500 * time.Millisecond
	// startTimeout is how long the member may take to read its log and to elect itself.
	startTimeout = 60 * time.Second
	// stopTimeout is how long the end of the member is waited for. All that was acknowledged is on the disk before.
	stopTimeout = 15 * time.Second
	dialTimeout = 20 * time.Second
	// maxSocketPath is what the kernel's sockaddr_un holds, less the zero at its end.
	maxSocketPath = 107
	// FirstName is that of a cluster's first member. peerHost is where a member is that no other one reaches.
	FirstName = "berth"
	peerHost  = "berth.invalid:2380"
)

// Member is an etcd in this process.
type Member struct {
	etcd   *embed.Etcd
	local  *local
	socket string
	open   gate
}

// Options are what a member is started with.
type Options struct {
	Dir    string // of its data
	RunDir string // of its socket; only this user may enter it
	// Name tells it from the others; FirstName, if empty.
	Name string
	// Peering is how other members reach it; nil: there are none.
	Peering *Peering
	// Join are URLs of members of the cluster that a new one is to be of. Without them an empty directory becomes a new
	// cluster of this one member.
	Join []string
	// Begun is the file that tells of a store that has begun; empty: nobody asks. While it is there no store begins
	// with nothing where there is none.
	Begun string
	// Snapshots is where copies of the store are, which tell of it, too.
	Snapshots string
	Log       *slog.Logger
}

// Start starts a member, and waits until it serves and takes part in elections. A restore that was killed when its
// store was whole is ended first.
func Start(ctx context.Context, o Options) (*Member, error) {
	if o.Name == "" {
		o.Name = FirstName
	}
	socket := SocketPath(o.RunDir)
	if len(socket) > maxSocketPath {
		return nil, fmt.Errorf("start etcd: the path of its socket %s has %d bytes and may have %d: use a shorter data directory",
			socket, len(socket), maxSocketPath)
	}
	if err := settle(o.Dir); err != nil {
		return nil, err
	}
	if err := o.lost(); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if err := o.checkDatabase(); err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	for _, d := range []string{o.Dir, o.RunDir} {
		if err := atomicfile.MkdirSynced(d, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of etcd: %w", err)
		}
		if err := os.Chmod(d, 0o700); err != nil {
			return nil, fmt.Errorf("make directory of etcd: %w", err)
		}
	}
	c := configure(o, socket)
	begun, err := hasLog(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	if len(o.Join) > 0 && !begun {
		members, err := enlist(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("join etcd: %w", err)
		}
		c.InitialCluster, c.ClusterState = members, embed.ClusterStateFlagExisting
	}
	local, err := listenLocal(socket, o.Log)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZapOf(o.Log, &local.strangers))
	e, err := begin(c)
	if err != nil {
		local.stop()
		return nil, fmt.Errorf("start etcd: %w; its data is in %s; where that is damaged, %s", err, o.Dir, o.wayBack())
	}
	local.serve(e)
	m := &Member{etcd: e, local: local, socket: socket}
	if err = m.arrive(ctx, o); err == nil {
		err = o.remember()
	}
	if err != nil {
		m.Stop()
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	go m.watchSpace(o.Dir, o.Log)
	return m, nil
}

// arrive waits until the member serves, has a vote, and is known by the address that it has now.
func (m *Member) arrive(ctx context.Context, o Options) error {
	if n := len(m.etcd.Server.Cluster().Members()); n > 1 && o.Peering == nil {
		return fmt.Errorf("its data in %s is that of %d members, and it was not told how the others reach it: "+
			"start it with --peer-address", o.Dir, n)
	}
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	select {
	case <-m.etcd.Server.ReadyNotify():
	case err := <-m.etcd.Err():
		return err
	case <-m.etcd.Server.StopNotify():
		return errRemoved
	case <-ctx.Done():
		return ctx.Err()
	case <-deadline.C:
		if all := m.local.strangers.now(); len(all) > 0 {
			return fmt.Errorf("not ready within %s: %s", startTimeout, strings.Join(all, "; "))
		}
		if others := m.others(); len(others) > 0 {
			return fmt.Errorf("not ready within %s: most members have to run for one to be elected; the others are %s",
				startTimeout, strings.Join(others, ", "))
		}
		return fmt.Errorf("not ready within %s: where the disk is well, the log in %s has lost its end: %s",
			startTimeout, logIn(o.Dir), o.wayBack())
	}
	if err := m.promote(ctx, o.Log); err != nil {
		return err
	}
	return m.moved(ctx, o)
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

func configure(o Options, socket string) *embed.Config {
	c := embed.NewConfig()
	c.Name, c.Dir = o.Name, o.Dir
	// Nobody else can be elected: the first election need not wait for others to be heard of.
	c.TickMs, c.ElectionMs = 100, 500
	c.BackendBatchInterval = commitEvery
	// A snapshot of the log keeps this many entries in memory for members that are behind.
	c.SnapshotCatchUpEntries = 100
	c.SnapshotCount = 10_000
	c.ListenPeerUrls = nil // there is no other member to listen to
	c.AdvertisePeerUrls = []url.URL{peerURL()}
	c.ListenClientUrls = nil // the socket is not the library's
	if p := o.Peering; p != nil {
		p.configure(c)
	}
	c.AdvertiseClientUrls = append([]url.URL{{Scheme: "unix", Path: socket}}, c.ListenClientUrls...)
	c.InitialCluster = initialCluster(o.Name, c.AdvertisePeerUrls[0])
	// The IDs of a new cluster and of its first member are a hash of this, and of the address, which is that of the one
	// before. Members of that which are left would have the new one take all their objects in place of its own.
	c.InitialClusterToken = rand.Text()
	c.QuotaBackendBytes, c.MaxRequestBytes = quota, maxRequest
	// The API server compacts every five minutes. Where it does not, an hour of history is enough for anybody.
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	c.WatchProgressNotifyInterval = 5 * time.Second
	c.EnableGRPCGateway = false
	return c
}

// peerURL is where others would reach a member that has none.
func peerURL() url.URL { return url.URL{Scheme: "http", Host: peerHost} }

// initialCluster is a cluster of one member.
func initialCluster(name string, at url.URL) string { return name + "=" + at.String() }

// SocketPath is the member's socket in a run directory.
func SocketPath(runDir string) string { return filepath.Join(runDir, "etcd.sock") }

// Endpoint is what clients of the member dial.
func (m *Member) Endpoint() string { return Endpoint(m.socket) }

// Endpoint is what clients of a socket dial.
func Endpoint(socket string) string { return "unix://" + socket }

// Failed has the error with which the member ended by itself.
func (m *Member) Failed() <-chan error {
	failed := make(chan error, 1)
	go func() {
		select {
		case err := <-m.etcd.Err():
			failed <- err
		case <-m.etcd.Server.StopNotify():
			failed <- errRemoved // or somebody has stopped it, who does not ask
		}
	}()
	return failed
}

// Stop ends the member, with what it has acknowledged on the disk. It waits for a while only: a member that has never
// become ready waits for itself, for minutes.
func (m *Member) Stop() {
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.open.close()
		m.local.stop()
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
func Connect(s Servers, log *slog.Logger, dial ...grpc.DialOption) (*clientv3.Client, error) {
	if len(s.Endpoints) == 0 {
		return nil, errors.New("connect to etcd: no endpoints")
	}
	c := clientv3.Config{
		Endpoints: s.Endpoints, DialTimeout: dialTimeout,
		DialKeepAliveTime: 30 * time.Second, DialKeepAliveTimeout: 10 * time.Second,
		MaxCallSendMsgSize: maxRequest, MaxCallRecvMsgSize: 1<<31 - 1, // a list is one answer
		DialOptions: append([]grpc.DialOption{grpc.WithDisableServiceConfig()}, dial...),
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
