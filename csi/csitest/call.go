package csitest

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// operation is a call that is about a volume.
type operation struct {
	rpc  string
	gone <-chan struct{} // closed when its caller no longer waits
	end  chan struct{}
}

// intercept is around every call: it checks what all calls have in common, lets faults happen, and remembers the
// answer.
func (d *Driver) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	rpc := path.Base(info.FullMethod)
	about := subject(req)
	n := d.ledger.begin(rpc, about)
	resp, err := d.answer(ctx, rpc, about, req, handle)
	d.ledger.mu.Lock()
	d.ledger.s.Calls[n].Code = status.Code(err).String()
	d.ledger.tell()
	d.ledger.mu.Unlock()
	return resp, err
}

// begin remembers a call, and returns which it is.
func (l *ledger) begin(rpc, about string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s.Calls = append(l.s.Calls, Call{RPC: rpc, Volume: about})
	l.tell()
	return len(l.s.Calls) - 1
}

func (d *Driver) answer(ctx context.Context, rpc, about string, req any, handle grpc.UnaryHandler) (any, error) {
	if f := d.Faults.next(rpc, about); f != nil {
		ctx = context.WithValue(ctx, faultKey{}, f)
	} else if d.opts.Decide != nil {
		if f := d.opts.Decide(rpc, about); f != nil {
			ctx = context.WithValue(ctx, faultKey{}, f)
		}
	}
	d.judge.common(ctx, rpc, about, req)
	if about != "" {
		leave, err := d.ledger.enter(ctx, rpc, about)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	if err := d.happen(ctx, Before); err != nil {
		return nil, err
	}
	resp, err := handle(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := d.happen(ctx, After); err != nil {
		return nil, err
	}
	d.ledger.answered(about, req)
	return resp, nil
}

// enter begins the one call that a volume has at a time. Another one that its caller still waits for is a violation.
// A call whose caller gave up before is none: the goroutines of a server run in any order, and what was called after it
// may have been answered by now.
func (l *ledger) enter(ctx context.Context, rpc, about string) (leave func(), err error) {
	l.mu.Lock()
	if ctx.Err() != nil {
		l.mu.Unlock()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	before := l.busy[about]
	if before == nil {
		one := &operation{rpc: rpc, gone: ctx.Done(), end: make(chan struct{})}
		l.busy[about] = one
		l.mu.Unlock()
		return func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.busy, about)
			close(one.end)
		}, nil
	}
	l.mu.Unlock()
	select { // a caller that was killed is known to be gone when its connection is
	case <-before.gone:
	case <-before.end:
	case <-time.After(patience):
		l.violation("%s of %s is called while %s is not answered", rpc, about, before.rpc)
	}
	return nil, status.Errorf(codes.Aborted, "%s of %s has not ended yet", before.rpc, about)
}

// subject is what a call is about: a volume or a snapshot, by ID, or by name before it is made.
func subject(req any) string {
	switch r := req.(type) {
	case *csi.CreateVolumeRequest:
		return r.GetName()
	case *csi.CreateSnapshotRequest:
		return r.GetName()
	case *csi.DeleteSnapshotRequest:
		return r.GetSnapshotId()
	case *csi.CreateVolumeGroupSnapshotRequest:
		return r.GetName()
	case *csi.DeleteVolumeGroupSnapshotRequest:
		return r.GetGroupSnapshotId()
	case interface{ GetVolumeId() string }:
		return r.GetVolumeId()
	}
	return ""
}

const (
	maxString = 128     // bytes
	maxMap    = 4 << 10 // bytes
	tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"
	ephemeral = "csi.storage.k8s.io/ephemeral"
)

// common checks what is asked of every call: a deadline, the sizes of fields, and the secrets.
func (j judge) common(ctx context.Context, rpc, about string, req any) {
	if _, ok := ctx.Deadline(); !ok {
		j.ledger.violation("%s of %s has no deadline", rpc, about)
	}
	if len(about) > maxString {
		j.ledger.violation("%s is about a name of %d bytes", rpc, len(about))
	}
	if r, ok := req.(interface{ GetVolumeId() string }); ok && r.GetVolumeId() == "" && !strings.HasPrefix(rpc, "List") {
		j.ledger.violation("%s has no volume", rpc)
	}
	for what, m := range fields(req) {
		size := 0
		for k, v := range m {
			size += len(k) + len(v)
		}
		if size > maxMap && m[tokensKey] == "" {
			j.ledger.violation("%s of %s has %d bytes of %s", rpc, about, size, what)
		}
	}
	want, checked := j.opts.Secrets[rpc]
	if s, ok := req.(interface{ GetSecrets() map[string]string }); ok && checked && !maps.Equal(want, s.GetSecrets()) {
		j.ledger.violation("%s of %s has other secrets than it should: %v", rpc, about, slices.Sorted(maps.Keys(s.GetSecrets())))
	}
}

// fields are the maps of a message.
func fields(req any) map[string]map[string]string {
	all := map[string]map[string]string{}
	if r, ok := req.(interface{ GetSecrets() map[string]string }); ok {
		all["secrets"] = r.GetSecrets()
	}
	if r, ok := req.(interface{ GetVolumeContext() map[string]string }); ok {
		all["volume context"] = r.GetVolumeContext()
	}
	if r, ok := req.(interface{ GetPublishContext() map[string]string }); ok {
		all["publish context"] = r.GetPublishContext()
	}
	if r, ok := req.(interface{ GetParameters() map[string]string }); ok {
		all["parameters"] = r.GetParameters()
	}
	return all
}

// answered remembers that a caller was told that a call went well.
func (l *ledger) answered(id string, req any) {
	switch r := req.(type) {
	case *csi.NodeStageVolumeRequest:
		l.change(id, func(v *Volume) {
			if v.Stage != nil {
				v.Stage.Done = true
			}
		})
	case *csi.NodeUnstageVolumeRequest:
		l.change(id, func(v *Volume) { v.Stage = nil })
	case *csi.NodePublishVolumeRequest:
		l.change(id, func(v *Volume) {
			if p := v.Targets[r.GetTargetPath()]; p != nil {
				p.Done = true
			}
		})
	case *csi.NodeUnpublishVolumeRequest:
		l.update(func(s *State) {
			v := s.Volumes[id]
			if v == nil {
				return
			}
			delete(v.Targets, r.GetTargetPath())
			if v.Ephemeral && len(v.Targets) == 0 {
				delete(s.Volumes, id)
			}
		})
	}
}

// change changes what is known of a volume, if anything is.
func (l *ledger) change(id string, do func(*Volume)) {
	l.update(func(s *State) {
		if v := s.Volumes[id]; v != nil {
			if v.Targets == nil {
				v.Targets = map[string]*Place{}
			}
			if v.Attached == nil {
				v.Attached = map[string]map[string]string{}
			}
			do(v)
		}
	})
}

// below says whether a path is where paths may be.
func (j judge) below(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p {
		return fmt.Errorf("%q is not a clean absolute path", p)
	}
	if len(j.opts.Roots) > 0 && !slices.ContainsFunc(j.opts.Roots, func(root string) bool { return strings.HasPrefix(p, root+"/") }) {
		return fmt.Errorf("%s is outside of %v", p, j.opts.Roots)
	}
	return nil
}
