package apiserver

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/berth-node/berth/control/etcd"
)

func TestReachable(t *testing.T) {
	parse := func(texts ...string) []netip.AddrPort {
		var all []netip.AddrPort
		for _, s := range texts {
			all = append(all, netip.MustParseAddrPort(s))
		}
		return all
	}
	for name, c := range map[string]struct{ all, want []netip.AddrPort }{
		"none":           {},
		"only loopback":  {parse("127.0.0.1:6443", "[::1]:6443"), nil},
		"in order, once": {parse("10.0.0.2:6443", "10.0.0.1:6443", "10.0.0.2:6443"), parse("10.0.0.1:6443", "10.0.0.2:6443")},
		"another port":   {parse("10.0.0.2:7443", "10.0.0.1:6443"), parse("10.0.0.1:6443")},
		"another family": {parse("[fd00::1]:6443", "10.0.0.1:6443"), parse("10.0.0.1:6443")},
		"loopback aside": {parse("127.0.0.1:1", "10.0.0.1:6443"), parse("10.0.0.1:6443")},
	} {
		if got := reachable(c.all); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestServerHoldsKey: a server has a key for as long as it runs, also when etcd has lost its lease meanwhile.
func TestServerHoldsKey(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	member, err := etcd.Start(ctx, etcd.Options{Dir: filepath.Join(dir, "etcd"), RunDir: filepath.Join(dir, "run"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	defer member.Stop()
	client, err := etcd.Connect(etcd.Servers{Endpoints: []string{member.Endpoint()}}, log)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	events := client.Watch(ctx, serversPrefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	<-events // it watches
	s := newServers(client, netip.MustParseAddrPort("10.0.0.1:6443"), log)
	running, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.run(running)
	}()
	var told []*clientv3.Event // and not looked at: several may come at once
	next := func(want mvccpb.Event_EventType) *mvccpb.KeyValue {
		t.Helper()
		for len(told) == 0 {
			r, open := <-events
			if told = r.Events; !open {
				t.Fatalf("no %v: %v", want, ctx.Err())
			}
		}
		e := told[0]
		told = told[1:]
		if e.Type != want || string(e.Kv.Key) != serversPrefix+"10.0.0.1:6443" {
			t.Fatalf("%v of %s, want %v", e.Type, e.Kv.Key, want)
		}
		return e.Kv
	}
	first := next(mvccpb.PUT)
	left, err := s.renew(ctx, clientv3.LeaseID(first.Lease))
	if err != nil || left != serverTTL {
		t.Errorf("the lease lasts for %d seconds, %v", left, err)
	}
	if _, err := client.Revoke(ctx, clientv3.LeaseID(first.Lease)); err != nil {
		t.Fatal(err)
	}
	if left, err := s.renew(ctx, clientv3.LeaseID(first.Lease)); err != nil || left != 0 {
		t.Errorf("a lease that has ended lasts for %d seconds, %v", left, err)
	}
	next(mvccpb.DELETE)
	if second := next(mvccpb.PUT); second.Lease == first.Lease {
		t.Error("the key is there again with a lease that has ended")
	}
	stop()
	next(mvccpb.DELETE)
	<-done
}
