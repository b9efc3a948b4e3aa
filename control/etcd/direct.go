package etcd

import (
	"context"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Shorten has a client of this member call its functions for what reads and writes keys, where both would otherwise
// encode, decode and send to each other what is in one process anyway: a quarter of what a read costs. Streams go over
// the socket as before: there the server looks after those that want a leader.
func (m *Member) Shorten(c *clientv3.Client) {
	d := direct{clientv3.RetryKVClient(c), v3rpc.NewQuotaKVServer(m.etcd.Server), &door{&m.open, c.Ctx()}}
	c.KV = clientv3.NewKVFromKVClient(d, c)
}

// gate is passed by calls of the member's functions. The store is not to be closed below one, which nothing of the
// library sees to.
type gate struct {
	mu   sync.RWMutex
	shut bool
}

// close waits for the calls that are under way, which the member bounds, and lets no more of them pass.
func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = true
}

// door is the way of one client through the gate.
type door struct {
	gate   *gate
	client context.Context // ends when the client is closed, and with it its calls
}

// direct is the KV service of a member in this process. What it does not have is that of the socket.
type direct struct {
	pb.KVClient
	server pb.KVServer
	by     *door
}

// pass calls a function of the member, which must not have been stopped.
func pass[In, Out any](ctx context.Context, by *door, in *In, call func(context.Context, *In) (*Out, error)) (*Out, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(by.client, cancel)()
	by.gate.mu.RLock()
	defer by.gate.mu.RUnlock()
	if by.gate.shut {
		return nil, rpctypes.ErrGRPCStopped
	}
	return call(ctx, in)
}

// Range implements [pb.KVClient]. The client of the socket tries again what fails for want of a leader.
func (d direct) Range(ctx context.Context, in *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	out, err := pass(ctx, d.by, in, d.server.Range)
	if status.Code(err) == codes.Unavailable {
		return d.KVClient.Range(ctx, in, opts...)
	}
	return out, err
}

// Put implements [pb.KVClient].
func (d direct) Put(ctx context.Context, in *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return pass(ctx, d.by, in, d.server.Put)
}

// DeleteRange implements [pb.KVClient].
func (d direct) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return pass(ctx, d.by, in, d.server.DeleteRange)
}

// Txn implements [pb.KVClient].
func (d direct) Txn(ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return pass(ctx, d.by, in, d.server.Txn)
}

// Compact implements [pb.KVClient].
func (d direct) Compact(ctx context.Context, in *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return pass(ctx, d.by, in, d.server.Compact)
}
