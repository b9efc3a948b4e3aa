package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cri/image/layer"
	"github.com/berth-node/berth/cri/image/registry"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/internal/disk"
)

// packed is a layer as it comes. After its end, verify says whether it is what it should be.
type packed interface {
	io.ReadCloser
	verify() error
	discard() error // do not use again what is kept of it
	again() bool    // after discard: another try may read other bytes
	trouble() error // what went wrong with reading it, if that is what went wrong
	keeps() int64   // bytes that reading it adds to what is kept of it
}

// task is one layer to be made.
type task struct {
	chain  string
	below  []string // chain IDs under it, the nearest first
	diffID digest.Digest
	desc   ocispec.Descriptor
	open   func(ctx context.Context, count func(int)) (packed, error)
}

func (t *task) parent() string {
	if len(t.below) == 0 {
		return ""
	}
	return t.below[0]
}

// unpacker makes layers of archives. One that several images ask for at the same time is made once.
type unpacker struct {
	layers  *layers
	leases  *leases
	slots   *slots
	maxFill float64
	log     *slog.Logger

	flights flights[struct{}]
}

// unpacking makes the layers of one image: all at once where the snapshotter lets it, because nothing of a layer
// depends on those below it but the metadata of directories it does not describe.
type unpacking struct {
	unpacker *unpacker
	ref      string
	registry string
	tell     func(Progress)
	tasks    []*task

	once   sync.Once
	budget *layer.Budget
	broke  error
}

// add the next layer; chain are the chain IDs of the layers so far and its own.
func (u *unpacking) add(
	chain []string, diffID digest.Digest, desc ocispec.Descriptor,
	open func(context.Context, func(int)) (packed, error),
) {
	n := len(chain) - 1
	t := &task{chain: chain[n], diffID: diffID, desc: desc, open: open}
	t.below = slices.Clone(chain[:n])
	slices.Reverse(t.below)
	u.tasks = append(u.tasks, t)
}

func (u *unpacking) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, t := range u.tasks {
		g.Go(func() error {
			unpack := func(ctx context.Context, tell func(Progress)) (struct{}, error) {
				m := newMeter(tell, u.ref, t.desc.Digest.String(), t.desc.Size)
				err := u.layer(ctx, t, m)
				if err == nil {
					m.done()
				}
				return struct{}{}, err
			}
			if err := u.share(ctx, t, unpack); err != nil {
				return fmt.Errorf("layer %s: %w", t.desc.Digest, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// share has a layer made once for all who ask for the same bytes of the same registry at the same time. Who only says
// that his bytes come to the same layer, or has them elsewhere, has no say in whether and when others get it. Nor has
// one whom the registry does not let have it, or whose repository lacks it: whoever has waited for him asks himself.
func (u *unpacking) share(
	ctx context.Context, t *task, unpack func(context.Context, func(Progress)) (struct{}, error),
) error {
	key := fmt.Sprint(u.registry, " ", t.chain, " ", t.desc.Digest, " ", t.desc.Size)
	for {
		mine := false
		_, err := u.unpacker.flights.do(ctx, key, u.tell, func(ctx context.Context, tell func(Progress)) (struct{}, error) {
			mine = true
			return unpack(ctx, tell)
		})
		// What was begun here may go on for others when ctx has ended.
		if err == nil || ctx.Err() != nil || mine {
			return err
		}
		if !errors.Is(err, registry.ErrDenied) && !errors.Is(err, registry.ErrNotFound) {
			return err
		}
	}
}

// layer makes one layer, unless it is there.
func (u *unpacking) layer(ctx context.Context, t *task, m *meter) error {
	layers := u.unpacker.layers
	defer u.unpacker.leases.take(layerKey(t.chain), t.desc.Digest.String())()
	if layers.snaps.Exists(t.chain) {
		return nil
	}
	if !layers.snaps.Independent() {
		if err := layers.await(ctx, t.parent()); err != nil {
			return err
		}
	}
	release, err := u.unpacker.slots.take(ctx, u.registry)
	if err != nil {
		return err
	}
	release = sync.OnceFunc(release)
	defer release()
	into, err := layers.snaps.Begin(ctx, t.chain, t.parent())
	if errors.Is(err, snapshot.ErrExists) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = into.Abort() }() // nothing after Commit; else the snapshotter's Clean gets it
	res, err := u.fill(ctx, t, into, m)
	if err != nil && (t.parent() == "" || !errors.Is(err, layer.ErrBelow)) {
		return err
	}
	release()
	// In order, so that a layer is there only with all it stands on.
	if err := layers.await(ctx, t.parent()); err != nil {
		return err
	}
	if err == nil && layers.snaps.Independent() {
		err = layer.Adopt(into.Dir(), res.Result, layers.dirs(t.below))
	}
	if errors.Is(err, layer.ErrBelow) {
		res, err = u.refill(ctx, t, into, m)
	}
	if err != nil {
		return err
	}
	if err := into.Commit(ctx); err != nil {
		return err
	}
	return layers.made(ctx, t.chain, res.Usage)
}

// fill unpacks a layer into its directory. What was here of it before may have been damaged by a power cut, and a
// mirror may have something else under its name, so then it gets another chance.
func (u *unpacking) fill(ctx context.Context, t *task, into snapshot.Layer, m *meter) (layer.Unpacked, error) {
	for {
		res, again, err := u.try(ctx, t, into.Dir(), into.Whiteouts(), m)
		if err == nil || !again {
			return res, err
		}
		u.unpacker.log.Warn("layer was damaged and is fetched again", "layer", t.desc.Digest, "error", err)
		if err := layer.Empty(ctx, into.Dir()); err != nil {
			return res, err
		}
		m.restart()
	}
}

// refill unpacks a layer again on top of those below it, which are there by now.
func (u *unpacking) refill(
	ctx context.Context, t *task, into snapshot.Layer, m *meter,
) (res layer.Unpacked, err error) {
	if err := layer.Empty(ctx, into.Dir()); err != nil {
		return res, err
	}
	m.restart()
	dir, done, err := into.Merged()
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, done()) }()
	res, _, err = u.try(ctx, t, dir, snapshot.WhiteoutsApply, m)
	if err != nil || !slices.Contains(res.Implied, "") {
		return res, err
	}
	return res, layer.Adopt(into.Dir(), layer.Result{Implied: []string{""}}, u.unpacker.layers.dirs(t.below))
}

// try unpacks once; again says that another try would read other bytes.
func (u *unpacking) try(
	ctx context.Context, t *task, dir string, w snapshot.Whiteouts, m *meter,
) (res layer.Unpacked, again bool, err error) {
	ctx, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("berth/cri").Start(ctx, "unpack layer")
	defer span.End()
	u.once.Do(func() { u.budget, u.broke = layer.BudgetOf(dir, u.unpacker.maxFill) })
	if u.broke != nil {
		return res, false, u.broke
	}
	r, err := t.open(ctx, m.add)
	if err != nil {
		return res, false, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	keeps := r.keeps()
	if err := u.budget.Keep(keeps); err != nil {
		return res, false, errors.Join(err, r.discard())
	}
	res, err = layer.Unpack(ctx, r, dir, layer.Options{Whiteouts: w, Budget: u.budget, Log: u.unpacker.log})
	switch {
	case err == nil:
		err = r.verify()
	case r.trouble() != nil:
		err = r.trouble()
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case blameless(err):
	default:
		// Whether these are the bytes that were asked for is worth knowing before the archive is called bad.
		if _, rerr := io.Copy(io.Discard, r); rerr == nil {
			if verr := r.verify(); verr != nil {
				err = verr
			}
		}
	}
	if err == nil && res.DiffID != t.diffID {
		err = invalid("unpacked it has the digest %s, the configuration says %s", res.DiffID, t.diffID)
	}
	if err == nil {
		return res, false, nil
	}
	// On a full disk, what was kept for a retry is in the way of everybody else.
	if !disk.Full(err) && (r.trouble() != nil || ctx.Err() != nil) {
		return res, false, err
	}
	if derr := r.discard(); derr != nil {
		return res, false, errors.Join(err, derr)
	}
	u.budget.Drop(keeps)
	return res, !blameless(err) && r.again(), err
}

// blameless says that an error is not that of a damaged archive.
func blameless(err error) bool {
	return errors.Is(err, layer.ErrTooBig) || errors.Is(err, layer.ErrNeverFits) || errors.Is(err, layer.ErrBelow) ||
		disk.Full(err) || errors.Is(err, unix.EIO)
}

// readAll reads small content.
func readAll(r packed, d ocispec.Descriptor) ([]byte, error) {
	body := make([]byte, d.Size)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, err
	}
	if err := r.verify(); err != nil {
		return nil, errors.Join(err, r.discard())
	}
	return body, nil
}
