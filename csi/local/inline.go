package local

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-node/berth/csi/local/record"
	"github.com/berth-node/berth/internal/quantity"
)

// ephemeralKey says in a volume's context that it is a pod's inline volume.
const ephemeralKey = "csi.storage.k8s.io/ephemeral"

// parameterSize is the attribute of an inline volume that says how large it is.
const parameterSize = "size"

// inlines makes volumes that belong to one pod, and removes them with it.
type inlines struct {
	records   *records
	backends  *backends
	maker     *maker
	stager    *stager
	publisher *publisher
	dir       string // in which they are staged
}

// readInline takes what a pod says of its inline volume.
func (i *inlines) readInline(r *csi.NodePublishVolumeRequest) (record.Volume, sizeRange, error) {
	parameters, size := map[string]string{}, int64(defaultSize)
	for name, value := range r.GetVolumeContext() {
		switch {
		case strings.HasPrefix(name, "csi.storage.k8s.io/"): // what kubelet tells of the pod
		case name == parameterSize:
			q, err := readSize(value)
			if err != nil {
				return record.Volume{}, sizeRange{}, invalid("volume_context", "size %q: %v", shorten(value), err)
			}
			size = q
		default:
			parameters[name] = value
		}
	}
	s, err := i.backends.readShape(parameters, []*csi.VolumeCapability{r.GetVolumeCapability()})
	if err != nil {
		return record.Volume{}, sizeRange{}, err
	}
	if s.Encrypted {
		return record.Volume{}, sizeRange{}, invalid("volume_context", "encryption: not for inline volumes, whose data goes with the pod")
	}
	sizes, err := readRange(&csi.CapacityRange{RequiredBytes: size})
	return record.Volume{
		ID: idOf(inlineKind, r.GetVolumeId()), Name: r.GetVolumeId(), Inline: r.GetVolumeId(), State: record.Making, Content: s.Content,
		Quota: s.Quota, Trim: trimNever, Parameters: parameters,
	}, sizes, err
}

func readSize(text string) (int64, error) {
	q, err := quantity.Parse(text)
	if err != nil {
		return 0, err
	}
	if n, ok := q.AsInt64(); ok && n > 0 {
		return n, nil
	}
	return 0, errors.New("must be a number of bytes greater than 0")
}

// publishInline makes a volume for one pod, and mounts it.
func (i *inlines) publishInline(ctx context.Context, r *csi.NodePublishVolumeRequest) error {
	want, sizes, err := i.readInline(r)
	if err != nil {
		return err
	}
	made, err := i.maker.create(ctx, want, sizes, origin{typed: true})
	if err != nil {
		return err
	}
	v, free, err := i.records.volume(ctx, made.ID)
	if err != nil {
		return err
	}
	defer free()
	m := r.GetVolumeCapability().GetMount()
	s := staging{path: i.inlineStaging(v.ID), how: record.Mount{Flags: m.GetMountFlags(), Group: m.GetVolumeMountGroup()}, secrets: r.GetSecrets()}
	if err = i.stager.stage(ctx, v, s); err != nil {
		return errors.Join(err, i.dropUnused(ctx, v))
	}
	own := &csi.NodePublishVolumeRequest{
		VolumeId: v.ID, TargetPath: r.GetTargetPath(), VolumeCapability: r.GetVolumeCapability(), Readonly: r.GetReadonly(),
	}
	if err := i.publisher.publish(ctx, v, own); err != nil {
		_ = i.dropUnused(ctx, v) // it is found again by its record when the pod is taken down
		return err
	}
	return nil
}

func (i *inlines) inlineStaging(id string) string { return filepath.Join(i.dir, id) }

// unpublishInline takes a pod's inline volume away, with its data. done is false when the ID is that of another kind of
// volume.
func (i *inlines) unpublishInline(ctx context.Context, id, target string) (done bool, err error) {
	if record.IsID(id) {
		return false, nil
	}
	v, free, err := i.records.taken(ctx, idOf(inlineKind, id))
	if status.Code(err) == codes.NotFound {
		return false, nil
	}
	if err != nil {
		return true, err
	}
	defer free()
	if err := i.publisher.unpublish(ctx, v, target); err != nil {
		return true, err
	}
	return true, i.dropUnused(ctx, v)
}

// dropUnused removes an inline volume that nobody uses. Its lock is held.
func (i *inlines) dropUnused(ctx context.Context, v record.Volume) error {
	id := v.ID
	u, err := i.records.use(id)
	if err != nil || len(u.Targets) > 0 {
		return err
	}
	if err := i.stager.unstage(ctx, v, i.inlineStaging(id)); err != nil {
		return err
	}
	i.records.step.at("remove staging path")
	if err := os.Remove(i.inlineStaging(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed("remove inline volume", err)
	}
	// What a record that cannot be read tells of stays, and its pod goes.
	if err := i.maker.removeVolume(ctx, id); err != nil && !errors.Is(err, record.ErrDamaged) {
		return failed("remove inline volume", err)
	}
	return nil
}
