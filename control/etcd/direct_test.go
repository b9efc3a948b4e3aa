package etcd

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// TestShorten has a client that calls the member's functions beside one of the socket: they see the same, and are told
// of the same mistakes. None is let in when the member has stopped.
func TestShorten(t *testing.T) {
	m, far := start(t, t.TempDir())
	near, err := Connect(Servers{Endpoints: []string{m.Endpoint()}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.Shorten(near)
	heard := near.Watch(t.Context(), "/", clientv3.WithPrefix())
	for _, c := range []struct {
		by    *clientv3.Client
		key   string
		other *clientv3.Client
	}{{near, "/near", far}, {far, "/far", near}} {
		if _, err := c.by.Put(t.Context(), c.key, "1"); err != nil {
			t.Fatal(err)
		}
		got, err := c.other.Get(t.Context(), c.key)
		if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
			t.Fatalf("%s is read as %v, %v", c.key, got, err)
		}
		if w := <-heard; len(w.Events) != 1 || string(w.Events[0].Kv.Key) != c.key {
			t.Errorf("heard of %v, not of %s", w.Events, c.key)
		}
	}
	last, err := near.Delete(t.Context(), "/far")
	if err != nil || last.Deleted != 1 {
		t.Errorf("deleted %v, %v", last, err)
	}
	done, err := near.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision("/far"), ">", 0)).Then(clientv3.OpPut("/a", "b")).
		Else(clientv3.OpGet("/near")).Commit()
	if err != nil || done.Succeeded || len(done.Responses[0].GetResponseRange().Kvs) != 1 {
		t.Errorf("a transaction whose condition is not met: %v, %v", done, err)
	}
	if _, err := near.Compact(t.Context(), last.Header.Revision); err != nil {
		t.Error(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []*clientv3.Client{far, near} {
		if _, err := c.Get(t.Context(), "/near", clientv3.WithRev(1)); !errors.Is(err, rpctypes.ErrCompacted) {
			t.Errorf("what is compacted is read: %v", err)
		}
		if _, err := c.Put(t.Context(), "", "1"); !errors.Is(err, rpctypes.ErrEmptyKey) {
			t.Errorf("an empty key is written: %v", err)
		}
		if _, err := c.Put(over, "/late", "1"); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that nobody waits for: %v", err)
		}
	}
	for _, c := range []*clientv3.Client{far, near} {
		if err := c.Close(); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	m.Stop()
	if _, err := near.Put(t.Context(), "/late", "1"); !errors.Is(err, rpctypes.ErrStopped) {
		t.Errorf("a write after the end: %v", err)
	}
}

// leaderless is a member of a cluster that has no leader at the moment.
type leaderless struct{ pb.KVServer }

// Range implements [pb.KVServer].
func (leaderless) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	return nil, rpctypes.ErrGRPCLeaderChanged
}

// again is a client that tries again until there is a leader.
type again struct{ pb.KVClient }

// Range implements [pb.KVClient].
func (again) Range(context.Context, *pb.RangeRequest, ...grpc.CallOption) (*pb.RangeResponse, error) {
	return &pb.RangeResponse{Count: 1}, nil
}

// TestLeaderless has a read for which there is no leader be one that is tried again.
func TestLeaderless(t *testing.T) {
	got, err := direct{again{}, leaderless{}, &door{new(gate), t.Context()}}.Range(t.Context(), new(pb.RangeRequest))
	if err != nil || got.Count != 1 {
		t.Errorf("%v, %v", got, err)
	}
}
