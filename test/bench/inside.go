package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri"
)

// inProcess is a peer whose agent calls the runtime in its own process, and the socket is for others.
type inProcess interface {
	// Inside opens a second runtime in this process, with the image in it. The caller purges it.
	Inside(ctx context.Context) (*cri.Server, string, error)
}

// Inside also returns the group below which pods may have theirs.
func (p *berth) Inside(ctx context.Context) (*cri.Server, string, error) {
	dir := p.dir + "/inside"
	s, err := cri.New(ctx, cri.Config{
		RootDir: dir + "/root", RunDir: dir + "/run", LogDir: dir + "/logs", CgroupRoot: "/berth-bench-in", Helper: p.b.bin +
			"/berth-helper",
		BridgeName: "berthbenchin", PodCIDR: netip.MustParsePrefix("10.203.0.0/16"), CNIConfDir: dir + "/cni",
	})
	if err != nil {
		return nil, "", err
	}
	f, err := os.Open(p.b.bin + "/test/busybox.tar")
	if err != nil {
		return s, "", err
	}
	defer f.Close()
	_, err = s.Local().Images().Import(ctx, f, nil)
	return s, "/berth-bench-in/cri", err
}

// criInside times the calls that only look, made in-process as the agent makes them: what they take without gRPC.
func (b *bench) criInside(ctx context.Context, p peer, in inProcess, logs string) (err error) {
	s, parent, err := in.Inside(ctx)
	if s != nil {
		defer func() {
			err = errors.Join(err, s.Local().Purge(context.WithoutCancel(ctx)), s.Close())
			removeGroups("/berth-bench-in")
		}()
	}
	if err != nil {
		return err
	}
	r := &criRun{
		criClient: &criClient{rt: runtimeapi.NewRuntimeServiceClient(direct{s})}, parent: parent, logs: logs,
		took: map[string][]time.Duration{}, calls: costCallsInside,
	}
	if err := r.crowd(ctx, b.many, func() []int { return []int{os.Getpid()} }); err != nil {
		return err
	}
	for _, c := range r.costs {
		b.report.record(p, "in-process "+c.what+", CPU of a call", "µs", c.micros)
	}
	return nil
}

// direct has a client's calls answered by a server in the same process, by the method itself: nothing is encoded or
// copied.
type direct struct {
	server runtimeapi.RuntimeServiceServer
}

func (d direct) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	desc := runtimeapi.RuntimeService_ServiceDesc
	i := slices.IndexFunc(desc.Methods,
		func(m grpc.MethodDesc) bool { return "/"+desc.ServiceName+"/"+m.MethodName == method })
	if i < 0 {
		return fmt.Errorf("%s is not a call of the CRI", method)
	}
	out, err := desc.Methods[i].Handler(d.server, ctx, func(in any) error {
		reflect.ValueOf(in).Elem().Set(reflect.ValueOf(args).Elem())
		return nil
	}, nil)
	if err != nil {
		return err
	}
	reflect.ValueOf(reply).Elem().Set(reflect.ValueOf(out).Elem())
	return nil
}

func (direct) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.ErrUnsupported
}
