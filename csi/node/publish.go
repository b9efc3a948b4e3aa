package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
)

// Publish gives a volume to a pod: attaches and stages it where that is to be done, expands it, and publishes it. For
// one that the pod has it does nothing. An error that waits for its driver is [csi.ErrNotRegistered]; one that comes
// too soon after another is [*Backoff]. A volume that the driver does not expand is published, which Fresh tells of,
// and is an error until [Manager.Expand] has expanded it or has forgotten that, or the driver refuses to while it is in
// use.
func (m *Manager) Publish(ctx context.Context, r Request) (Published, error) {
	if err := r.complete(m.ledger.layout); err != nil {
		return Published{}, fmt.Errorf("publish volume: %w", err)
	}
	out, err := m.publish(ctx, &r)
	if err == nil { // what was there may have been replaced since
		err = undoing{m}.led(ctx, out.Path, r.Block)
	}
	if err != nil {
		return Published{Fresh: out.Fresh}, fmt.Errorf("publish volume %s: %w", r.Name, err)
	}
	return out, nil
}

func (m *Manager) publish(ctx context.Context, r *Request) (Published, error) {
	id, path := key(r.Driver, r.Handle), m.ledger.layout.target(r.Block, r.PodDir, r.Pod.UID, r.Name)
	if out, has, due := m.has(id, path); has && !due && !r.Republish {
		return out, nil
	}
	v, unlock, err := m.ledger.lock(ctx, id, r.Driver)
	if err != nil {
		return Published{}, err
	}
	defer unlock()
	if out, has, _ := m.has(id, path); has && !r.Republish {
		return out, expanding{m}.again(ctx, v, path, r)
	}
	// Which is no failure of the volume, that other pods wait for.
	if err := errors.Join(m.ledger.free(v, "", path), v.record.alone(r)); err != nil {
		return Published{}, err
	}
	if err := m.ledger.mayTry(&v.publish); err != nil {
		return Published{}, err
	}
	if r.Complete != nil { // what is not there is no failure of the driver either
		if err := r.Complete(ctx, r); err != nil {
			return Published{}, err
		}
		if err := checkContext(r.PublishContext); err != nil {
			return Published{}, err
		}
	}
	d, err := m.drivers.Get(r.Driver)
	if err == nil {
		err = (&publishing{m: m, v: v, d: d, r: r, path: path}).run(ctx)
	}
	m.ledger.tried(ctx, &v.publish, err)
	if err != nil {
		return Published{}, err
	}
	out, _, _ := m.has(id, path)
	out.Fresh = true
	return out, expanding{m}.awaited(v, path)
}

// has says whether a volume is published to a pod, by what is known to be done, and whether there is an expansion of it
// that is to be tried or that the pod waits for.
func (m *Manager) has(key, path string) (out Published, has, due bool) {
	m.ledger.mu.Lock()
	defer m.ledger.mu.Unlock()
	v := m.ledger.entries[key]
	if v == nil || v.record == nil || !v.note.published(path) {
		return Published{}, false, false
	}
	i := v.record.use(path)
	if i < 0 {
		return Published{}, false, false
	}
	due = v.record.Expand != nil && (v.record.Uses[i].Awaits || !m.ledger.now().Before(v.expand.until))
	return Published{Path: path, Group: v.record.Uses[i].Group}, true, due
}

// publishing is one volume on its way to a pod. The lock of the entry is held.
type publishing struct {
	m    *Manager
	v    *entry
	d    *csi.Driver
	r    *Request
	path string

	tried  bool // it was recorded before: the driver may have published it already, and nobody have heard of it
	waited bool // it is published to the pod already, which waits for an expansion
}

// run does what is not known to be done, each step after what it will have to be undone by is on the disk.
func (p *publishing) run(ctx context.Context) error {
	if why := p.m.ledger.unreadable(p.v.key); why != "" {
		return errors.New(why)
	}
	next, err := p.record()
	if err != nil {
		return err
	}
	p.tried = p.v.record != nil && p.v.record.use(p.path) >= 0
	p.waited = p.v.record.awaits(p.path) && p.v.note.published(p.path)
	p.m.step("record")
	if p.v.record == nil || !reflect.DeepEqual(next, p.v.record) {
		if err := p.m.ledger.keep(p.v, next); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{p.attach, p.stage} {
		if err := step(ctx); err != nil {
			if csi.Final(err) {
				err = errors.Join(err, p.giveUp(ctx))
			}
			return err
		}
	}
	if p.v.record.Stage != "" {
		p.expand(ctx)
	}
	if err := p.publish(ctx); err != nil {
		return err
	}
	if p.v.record.Stage == "" {
		p.expand(ctx)
	}
	return nil
}

func (p *publishing) expand(ctx context.Context) {
	if !p.waited {
		expanding{p.m}.expandDue(ctx, p.v, p.d, p.r.Secrets.NodeExpand)
	}
}

// record is what is to be undone when the volume is published to the pod, too.
func (p *publishing) record() (*record, error) {
	next := &record{Version: recordVersion, volume: p.r.volume(p.d)}
	if now := p.v.record; now != nil {
		switch used := len(now.Uses) > 0 || now.Stage != ""; {
		case used && now.Block != p.r.Block:
			return nil, errors.New("it is in use in the other volume mode")
		case used: // it is undone by what it was staged by
			copied := *now
			next = &copied
		default:
			next.Attach, next.Secret, next.Expand = now.Attach, now.Secret, now.Expand
		}
	}
	// A volume may be staged once at one path only, whatever PersistentVolume it is asked for by.
	if next.Stage == "" && !p.r.Ephemeral && p.d.Node(spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		next.Stage = p.m.ledger.layout.stage(&p.r.Volume)
	}
	attaches := p.d.Controller(spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME)
	if next.Attach == "" && !p.r.Ephemeral && !p.r.Attached && attaches {
		next.Attach = p.d.NodeID
	}
	if next.Attach != "" && p.r.AttachSecret != (SecretRef{}) {
		next.Secret = &p.r.AttachSecret
	}
	u := use{
		UID: p.r.Pod.UID, Namespace: p.r.Pod.Namespace, Pod: p.r.Pod.Name, Account: p.r.Pod.ServiceAccount, Dir: p.r.PodDir,
		Name: p.r.Name, Path: p.path, ReadOnly: p.r.ReadOnly, Group: p.r.mountGroup(p.d),
	}
	if !p.r.ReadOnly && (next.Expand == nil || next.Expand.Held) { // who may only read has no say in it
		if next.Expand = nil; p.r.Expand > max(p.v.note.Size, p.r.Size) {
			next.Expand = &expansion{Bytes: p.r.Expand, Held: true}
			u.Awaits = !p.v.note.published(p.path) || p.v.record.awaits(p.path) // and who has had it keeps it
		}
	}
	if next.Expand == nil {
		next = next.let()
	}
	next.Uses = slices.Clone(next.Uses)
	if i := next.use(p.path); i >= 0 {
		next.Uses[i] = u
	} else {
		next.Uses = append(next.Uses, u)
	}
	return next, p.m.ledger.free(p.v, next.Stage, p.path)
}

// alone says which other pod has a volume that one pod alone may have, by its own PersistentVolume or by the one that
// the other has it by: two may be of one volume, and say different things.
func (r *record) alone(of *Request) error {
	if r == nil || of.AccessMode != ReadWriteOncePod && r.Mode != ReadWriteOncePod {
		return nil
	}
	for _, u := range r.Uses {
		if u.UID != of.Pod.UID {
			return fmt.Errorf("pod %s/%s has it, and its access mode is %s", u.Namespace, u.Pod, ReadWriteOncePod)
		}
	}
	return nil
}

// free says which other volume is where one is to be: a driver that finds something there may take it for its own. So
// it is with a PersistentVolume that says something else than when its pod got it.
func (m *ledger) free(v *entry, stage, path string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.entries {
		if o == v || o.record == nil {
			continue
		}
		if stage != "" && stage == o.record.Stage {
			return fmt.Errorf("volume %s of CSI driver %s is staged at %s", csi.Text(o.record.Handle), o.record.Driver, stage)
		}
		if o.record.use(path) >= 0 {
			return fmt.Errorf("the pod has volume %s of CSI driver %s by that name: it gets the other one when it is made anew",
				csi.Text(o.record.Handle), o.record.Driver)
		}
	}
	return nil
}

// maxContext is how much a controller may have the node's service be told, in bytes: more than the specification's 4
// KiB, as to nobody's harm.
const maxContext = 64 << 10

func (p *publishing) attach(ctx context.Context) error {
	if p.v.record.Attach == "" || p.v.note.Attached {
		return nil
	}
	p.m.step("attach")
	readOnly := p.r.ReadOnly && p.d.Controller(spec.ControllerServiceCapability_RPC_PUBLISH_READONLY)
	answer, err := p.d.Client().Controller().ControllerPublishVolume(ctx, &spec.ControllerPublishVolumeRequest{
		VolumeId: p.v.record.Handle, NodeId: p.v.record.Attach, VolumeCapability: p.v.record.attachment(p.d), Readonly: readOnly,
		Secrets: p.r.Secrets.ControllerPublish, VolumeContext: p.r.Attributes,
	})
	if err != nil {
		return err
	}
	p.m.step("attached")
	if err := checkContext(answer.GetPublishContext()); err != nil {
		return fmt.Errorf("ControllerPublishVolume: %w", err)
	}
	return p.m.ledger.mark(p.v, func(n *note) { n.Attached, n.Context = true, answer.GetPublishContext() })
}

func checkContext(publish map[string]string) error {
	size := 0
	for k, v := range publish {
		size += len(k) + len(v)
	}
	if size > maxContext {
		return fmt.Errorf("publish_context has more than %d bytes", maxContext)
	}
	return nil
}

// attached is what the controller has said of the attachment, whoever has asked it.
func (p *publishing) attached() map[string]string {
	if p.v.record.Attach == "" {
		return p.r.PublishContext
	}
	return p.v.note.Context
}

func (p *publishing) stage(ctx context.Context) error {
	if p.v.record.Stage == "" || p.v.note.Staged != nil && !p.v.note.Doubted {
		return nil
	}
	if err := mkdirs(p.v.record.Stage); err != nil {
		return err
	}
	if !p.v.record.Block {
		if err := writeData(filepath.Dir(p.v.record.Stage), data{Driver: p.r.Driver, Handle: p.r.Handle}); err != nil {
			return err
		}
	}
	p.m.step("stage")
	_, err := p.d.Client().Node().NodeStageVolume(ctx, &spec.NodeStageVolumeRequest{
		VolumeId: p.v.record.Handle, PublishContext: p.attached(), StagingTargetPath: p.v.record.Stage,
		VolumeCapability: p.v.record.capability(p.d), Secrets: p.r.Secrets.Stage, VolumeContext: p.r.Attributes,
	})
	if err != nil {
		return err
	}
	p.m.step("staged")
	is := undoing{p.m}.seen(ctx, p.v.record.Stage)
	// It is written with what comes next: without that it is staged once more.
	p.m.ledger.know(p.v, func(n *note) { n.Staged, n.Doubted = &is, false })
	return nil
}

func (p *publishing) publish(ctx context.Context) error {
	before := p.v.note.published(p.path)
	if err := p.makeDir(); err != nil && !before {
		return err
	}
	p.m.step("publish")
	_, err := p.d.Client().Node().NodePublishVolume(ctx, &spec.NodePublishVolumeRequest{
		VolumeId: p.v.record.Handle, PublishContext: p.attached(), StagingTargetPath: p.v.record.Stage, TargetPath: p.path,
		VolumeCapability: p.r.volumeCapability(p.v.record, p.d), Readonly: p.r.ReadOnly, Secrets: p.r.publishSecrets(),
		VolumeContext: p.r.context(),
	})
	switch {
	case err != nil && !before && csi.Final(err): // what the pod has already stays
		return errors.Join(err, undoing{p.m}.unpublish(ctx, p.v, p.d, p.path), p.doubtStaged())
	case err != nil:
		return err
	}
	p.m.step("published")
	if err := (undoing{p.m}).led(ctx, p.path, p.r.Block); err != nil && !before {
		return errors.Join(err, undoing{p.m}.unpublish(ctx, p.v, p.d, p.path))
	}
	is := undoing{p.m}.seen(ctx, p.path)
	return p.m.ledger.mark(p.v, func(n *note) {
		n.Published[p.path] = is
		if n.Size == 0 {
			n.Size = p.r.Size
		}
	})
}

// doubtStaged has a volume that is staged be staged once more before it is published: the driver may have lost what it
// has staged, as one that is a file system's server has when it was restarted. For the pods that have it, it is staged.
func (p *publishing) doubtStaged() error {
	if p.v.note.Staged == nil {
		return nil
	}
	return p.m.ledger.mark(p.v, func(n *note) { n.Doubted = true })
}

// makeDir makes the directory that the driver makes the volume's own in.
func (p *publishing) makeDir() error {
	dir := filepath.Dir(p.path)
	err := mkdirs(dir)
	if err != nil {
		return err
	}
	if p.r.Block {
		if dir = p.m.ledger.layout.blockData(p.r.Name); dir == "" {
			return nil
		}
		if err := mkdirs(dir); err != nil {
			return err
		}
	}
	return writeData(dir, dataOf(p.r, p.m.cfg.Node))
}

// volumeCapability is that of one pod: volumes that are not staged may be given to a group by pod.
func (r *Request) volumeCapability(of *record, d *csi.Driver) *spec.VolumeCapability {
	v := of.volume
	v.Group = r.volume(d).Group
	return v.capability(d)
}

// giveUp undoes what a final error has ended before the volume was published: with the use, unless others have it, goes
// all that was done for it.
func (p *publishing) giveUp(ctx context.Context) error {
	if len(p.v.record.Uses) > 1 || p.v.note.published(p.path) {
		return nil
	}
	p.m.step("give up")
	if p.tried {
		if err := (undoing{p.m}).unpublish(ctx, p.v, p.d, p.path); err != nil {
			return fmt.Errorf("undo what was done: %w", err)
		}
	}
	if err := (undoing{p.m}).unwind(ctx, p.v, p.d); err != nil {
		return fmt.Errorf("undo what was done: %w", err)
	}
	return undoing{p.m}.clearPod(ctx, p.path, p.r.Block)
}

// gone says whether the driver has undone a volume: one that does not exist any more has nothing to undo.
func gone(err error) bool {
	return err == nil || csi.CodeOf(err) == codes.NotFound
}
