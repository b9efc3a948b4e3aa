package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// serversPrefix is where each API server of the cluster has a key, its address.
	serversPrefix = "/berth/servers/"
	// serverTTL is for how many seconds a server counts that has not been heard of. etcd's leader alone hears of it:
	// nothing is written.
	serverTTL = 15
	// renewEvery is how often etcd is told that this server lives: it may miss two of three.
	renewEvery = 5 * time.Second
	// renewTimeout bounds one time.
	renewTimeout = 4 * time.Second
	// serverAgain is how soon a server that has lost its key asks for another.
	serverAgain = time.Second
	// revokeTimeout bounds how long the end of a server waits until the others know.
	revokeTimeout = 2 * time.Second
)

// servers are the API servers of the cluster that live, by which pods reach the API.
type servers struct {
	etcd *clientv3.Client
	self netip.AddrPort
	log  *slog.Logger
	// changed has something in it when there are others than before.
	changed chan struct{}
}

func newServers(etcd *clientv3.Client, self netip.AddrPort, log *slog.Logger) *servers {
	return &servers{etcd, self, log, make(chan struct{}, 1)}
}

// run has the others know of this server until ctx ends, and hears of them.
func (s *servers) run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.watch(ctx)
	}()
	defer func() { <-done }()
	var told string
	for ctx.Err() == nil {
		if err := s.hold(ctx); err != nil && ctx.Err() == nil && err.Error() != told {
			s.log.Warn("other API servers do not hear of this one", "error", err)
			told = err.Error()
		}
		pause(ctx, serverAgain)
	}
}

// hold has the key of this server in etcd, until etcd has lost it or ctx ends.
func (s *servers) hold(ctx context.Context) error {
	lease, err := s.etcd.Grant(ctx, serverTTL)
	if err != nil {
		return fmt.Errorf("make lease: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
		defer cancel()
		_, _ = s.etcd.Revoke(ctx, lease.ID) // it ends by itself
	}()
	if _, err := s.etcd.Put(ctx, serversPrefix+s.self.String(), "", clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("write own address: %w", err)
	}
	return s.keep(ctx, lease.ID)
}

// keep has a lease last until etcd has lost it, or has not answered for as long as it lasts, or ctx ends.
func (s *servers) keep(ctx context.Context, lease clientv3.LeaseID) error {
	heard, next := time.Now(), renewEvery
	for {
		pause(ctx, next)
		if ctx.Err() != nil {
			return nil
		}
		left, err := s.renew(ctx, lease)
		switch {
		case err == nil && left <= 0:
			return errors.New("keep lease: it has ended")
		case err == nil:
			heard, next = time.Now(), renewEvery
		case time.Since(heard) >= serverTTL*time.Second:
			return fmt.Errorf("keep lease: %w", err)
		default:
			next = serverAgain
		}
	}
}

// renew has a lease begin again, and returns for how many seconds it lasts; 0: it has ended. The client's own way to do
// so wakes three times a second to look at the clock, and the one for once asks without a pause where there is no
// leader.
func (s *servers) renew(ctx context.Context, lease clientv3.LeaseID) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	stream, err := etcdserverpb.NewLeaseClient(s.etcd.ActiveConnection()).LeaseKeepAlive(ctx)
	if err == nil {
		err = stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(lease)})
	}
	if err != nil {
		return 0, fmt.Errorf("renew lease: %w", err)
	}
	answer, err := stream.Recv()
	if err != nil {
		return 0, fmt.Errorf("renew lease: %w", err)
	}
	return answer.TTL, nil
}

// watch tells of changes until ctx ends.
func (s *servers) watch(ctx context.Context) {
	for ctx.Err() == nil {
		for range s.etcd.Watch(ctx, serversPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly()) {
			s.tell()
		}
		pause(ctx, serverAgain)
	}
}

func (s *servers) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// list are the servers that live, and this one.
func (s *servers) list(ctx context.Context) ([]netip.AddrPort, error) {
	got, err := s.etcd.Get(ctx, serversPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("list API servers: %w", err)
	}
	all := []netip.AddrPort{s.self}
	for _, kv := range got.Kvs {
		a, err := netip.ParseAddrPort(strings.TrimPrefix(string(kv.Key), serversPrefix))
		if err == nil {
			all = append(all, a)
		}
	}
	return reachable(all), nil
}

// Living are the addresses of the API servers of the cluster that live.
func Living(ctx context.Context, client *clientv3.Client) ([]string, error) {
	got, err := client.Get(ctx, serversPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("list API servers: %w", err)
	}
	var all []string
	for _, kv := range got.Kvs {
		all = append(all, strings.TrimPrefix(string(kv.Key), serversPrefix))
	}
	return all, nil
}

// reachable are those addresses that pods may be told of, in order: one family, and one port, which are those of the
// first. An endpoint of the API has no others.
func reachable(all []netip.AddrPort) []netip.AddrPort {
	all = slices.DeleteFunc(all, func(a netip.AddrPort) bool { return a.Addr().IsLoopback() })
	slices.SortFunc(all, netip.AddrPort.Compare)
	all = slices.Compact(all)
	if len(all) == 0 {
		return nil
	}
	first := all[0]
	return slices.DeleteFunc(all, func(a netip.AddrPort) bool {
		return a.Port() != first.Port() || a.Addr().Is4() != first.Addr().Is4()
	})
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
