package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// miss is for what nobody wants any more.
func (a acts) miss(ctx context.Context, i *item) (after time.Duration, err error) {
	now := a.m.cfg.Now()
	r := *i.record
	elsewhere := a.m.elsewhere(i, &r)
	a.m.mu.Lock()
	if i.looked.IsZero() || a.m.doubt || elsewhere != nil {
		i.looked = now
	}
	passed := max(now.Sub(i.looked), 0) // a clock may be set back
	a.m.mu.Unlock()
	if passed > 0 || !r.Missing {
		if !r.Missing {
			a.m.log.Info("claim is gone", "what", string(i.kind), "name", i.name, "claim", r.Claim.String(), "stays", r.stays(), "grace", a.m.cfg.Grace)
		}
		r.Missing = true
		r.For += min(passed, 2*look) // the machine may have slept
		if err := a.m.keep(i, &r); err != nil {
			return 0, err
		}
		a.m.mu.Lock()
		i.looked = now
		a.m.mu.Unlock()
	}
	if r.stays() {
		return 0, nil
	}
	if elsewhere != nil {
		return 0, fmt.Errorf("delete %s: %w", i.kind, elsewhere)
	}
	if left := a.grace(&r.Claim) - r.For; left > 0 {
		return min(left, look), nil
	}
	return a.end(ctx, i)
}

// end is for what was missed for long enough.
func (a acts) end(ctx context.Context, i *item) (after time.Duration, err error) {
	r := *i.record
	if r.Handle != "" {
		if err := a.m.cfg.Node.Unreadable(r.Claim.Class.Driver, r.Handle); err != nil {
			return 0, fmt.Errorf("delete %s: %w", i.kind, err)
		}
		if pods := a.m.cfg.Node.Users(r.Claim.Class.Driver, r.Handle); len(pods) > 0 {
			return look, fmt.Errorf("delete %s: %w by %s", i.kind, errInUse, users(pods))
		}
	} else if err := a.create(ctx, i); err != nil {
		// What was asked for may be there, and only the same call tells what it is.
		switch now := i.record; {
		case now.Asked:
			return 0, err
		case now.Handle == "":
			return 0, a.m.forget(i)
		}
	}
	if err := a.m.elsewhere(i, i.record); err != nil {
		return 0, fmt.Errorf("delete %s: %w", i.kind, err)
	}
	return 0, a.remove(ctx, i)
}

func (a acts) grace(c *Claim) time.Duration {
	if c.Ephemeral {
		return 0
	}
	return a.m.cfg.Grace
}

// remove has the driver delete it, and then there is no record of it. Until the record says so the claim, put back, has
// its data: what could keep the driver from being called is found out before. A record that an earlier agent has left
// does not tell whether the driver was called, and no call of the protocol tells a volume that is half deleted from a
// whole one. So the deletion is finished, and a claim that is back hears of it.
func (a acts) remove(ctx context.Context, i *item) error {
	r := i.record
	call, err := a.deletion(r)
	if err != nil {
		return err
	}
	first := !r.Deleting
	if first {
		next := *r
		next.Deleting = true
		if err := a.m.keep(i, &next); err != nil {
			return err
		}
		if a.back(i) {
			return a.stays(i)
		}
	}
	switch err := call(ctx); {
	case refused(err) && first: // it is as it was; after a call whose end is not known it need not be
		return errors.Join(err, a.stays(i))
	case err != nil && csi.CodeOf(err) != codes.NotFound:
		return err
	}
	a.m.log.Info("deleted", "what", string(i.kind), "name", i.name, "claim", r.Claim.String())
	late := a.back(i)
	if late && r.Handle != "" { // before the record is gone, without which a next agent would not know
		a.late(i)
	}
	if err := a.m.forget(i); err != nil {
		return err
	}
	if !late && a.back(i) && r.Handle != "" {
		a.late(i)
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	i.looked = time.Time{}
	return nil
}

// back says whether the claim is there after all, which is then looked at again.
func (a acts) back(i *item) bool {
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	if i.want != nil {
		i.again = true
	}
	return i.want != nil
}

// stays takes back that something is being deleted.
func (a acts) stays(i *item) error {
	next := *i.record
	next.Deleting = false
	return a.m.keep(i, &next)
}

// deletion is the call that deletes what was made.
func (a acts) deletion(r *record) (func(context.Context) error, error) {
	if r.Handle == "" {
		return func(context.Context) error { return nil }, nil
	}
	d, err := a.m.cfg.Drivers.Get(r.Claim.Class.Driver)
	if err != nil {
		return nil, err
	}
	secrets, err := a.secrets(r.Secrets.Provisioner)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (err error) {
		switch r.Kind {
		case Snapshot:
			_, err = d.Client().Controller().DeleteSnapshot(ctx, &spec.DeleteSnapshotRequest{SnapshotId: r.Handle, Secrets: secrets})
		case Group:
			_, err = d.Client().GroupController().DeleteVolumeGroupSnapshot(ctx, deletionOf(r, secrets))
		default:
			_, err = d.Client().Controller().DeleteVolume(ctx, &spec.DeleteVolumeRequest{VolumeId: r.Handle, Secrets: secrets})
		}
		return err
	}, nil
}

// refused says that a driver has not begun to delete: somebody has to change something first.
func refused(err error) bool {
	switch csi.CodeOf(err) {
	case codes.FailedPrecondition, codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented:
		return true
	}
	return false
}
