package container

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/handler"
	"github.com/berth-node/berth/cri/image"
	"github.com/berth-node/berth/cri/oci"

	"github.com/berth-node/berth/cri/events"
	"github.com/berth-node/berth/cri/host"
	"github.com/berth-node/berth/cri/ledger"
	"github.com/berth-node/berth/cri/sandbox"
	"github.com/berth-node/berth/cri/step"
)

// Creator makes containers, up to their being started.
type Creator struct {
	host      *host.Host
	events    *events.Hub
	pods      *sandbox.Sandboxes
	table     *Table
	recipe    *recipe
	told      *told
	updater   *Updater
	lifecycle *Lifecycle
	stopper   *Stopper
}

// recipe is what containers are made of.
type recipe struct {
	bundles *bundles
	spec    *specifier
}

// Create makes a container in a sandbox, up to its root file system being mounted and its specification written. pod is
// what the client says of the sandbox now: a container that it has added since may be privileged in one that was not
// made for that.
func (m *Creator) Create(ctx context.Context, sandboxID string, cfg *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig) (string, error) {
	if cfg.GetMetadata().GetName() == "" {
		return "", fault.Invalidf("container metadata must include a name")
	}
	sb, err := m.pods.Table.ByID.Get(sandboxID)
	if err != nil {
		return "", err
	}
	if err := m.pods.Quarantine.Obscured(sb.ID); err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	var h handler.Handler
	if r := sb.Record().Runtime; r != nil {
		h = *r
	}
	img, err := host.ImageFor(m.host.Images, cfg.GetImage().GetImage(), h)
	if err != nil {
		return "", fmt.Errorf("create container: image %q: %w", cfg.GetImage().GetImage(), err)
	}
	userns := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()
	if err := oci.SameUserNamespace(sb.NamespaceOptions().GetUsernsOptions(), userns); err != nil {
		return "", fmt.Errorf("create container: %w: %w", fault.ErrInvalid, err)
	}
	c, err := m.createHeld(ctx, sb, cfg, pod, img)
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	m.updater.ApplyUpdates(ctx, c.others)
	return c.ID, nil
}

// createHeld makes a container while no plugin comes.
func (m *Creator) createHeld(ctx context.Context, sb *sandbox.Sandbox, cfg *runtimeapi.ContainerConfig, pod *runtimeapi.PodSandboxConfig, img image.Image) (*Container, error) {
	defer m.host.Plugins.Hold()()
	c, err := m.begin(sb, cfg, img)
	if err != nil {
		return nil, err
	}
	c.pod = pod
	if err := c.op.Lock(ctx); err != nil {
		return nil, errors.Join(err, m.table.drop(c))
	}
	defer c.op.Unlock()
	if err := m.make(ctx, c, img); err != nil {
		m.told.notCreated(context.WithoutCancel(ctx), c)
		return nil, err
	}
	m.events.Publish(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, c.ID, c.Sandbox.Statuses)
	m.host.Plugins.Created(ctx, m.told.of(c))
	return c, nil
}

// make makes what the record announces. What fails leaves nothing, or a container to be removed, where even undoing
// failed.
func (m *Creator) make(ctx context.Context, c *Container, img image.Image) error {
	// Only now that the sandbox knows the container: a stop of it either finds the container or is seen here.
	if _, err := c.Sandbox.Live(); err != nil {
		return errors.Join(err, m.table.drop(c))
	}
	undone, err := m.host.Steps.Run(ctx, c, "create container", m.recipe.plan(c, img))
	if err == nil {
		if err = m.table.update(c, func(r *Record) { r.State = Created }); err == nil {
			return nil
		}
		undone = m.host.Steps.Undo(context.WithoutCancel(ctx), c, "create container", m.recipe.plan(c, img)) == nil
	}
	if undone {
		return errors.Join(err, m.table.drop(c))
	}
	m.table.note(c, func(r *Record) {
		r.State, r.ExitCode, r.Reason, r.Message, r.FinishedAt = Exited, codeStartError, reasonStartError, err.Error(), time.Now().UnixNano()
	})
	close(c.Done)
	return err
}

// begin reserves the name and writes the record of a container to be.
func (m *Creator) begin(sb *sandbox.Sandbox, cfg *runtimeapi.ContainerConfig, img image.Image) (*Container, error) {
	cfg = m.recipe.bundles.nameImages(cfg)
	// The environment is needed for the specification only, which is in memory, and records are on a disk: it may have
	// secrets.
	kept, _ := proto.Clone(cfg).(*runtimeapi.ContainerConfig)
	kept.Envs = nil
	raw, err := ledger.Encode(kept)
	if err != nil {
		return nil, err
	}
	resources, err := ledger.Encode(cfg.GetLinux().GetResources())
	if err != nil {
		return nil, err
	}
	sig, err := oci.StopSignal(cfg.GetStopSignal(), img.StopSignal())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	id := ledger.NewID()
	rec := Record{
		ID: id, SandboxID: sb.ID, Name: containerName(cfg.GetMetadata(), sb.Config.GetMetadata()), State: Creating, Config: raw,
		CreatedAt: time.Now().UnixNano(), ImageID: img.ID, ImageRef: imageRef(img), Layer: img.TopLayer, StopSignal: int(sig), Resources: resources,
		Volumes: anonymousVolumes(img, cfg), LogPath: logPath(sb.Config, cfg), Cgroup: m.host.CgroupOf(sb.Config.GetLinux().GetCgroupParent(), id),
	}
	if len(img.Tags) > 0 {
		rec.ImageName = img.Tags[0]
	}
	if err := m.table.names.Reserve(rec.Name, id); err != nil {
		return nil, fmt.Errorf("reserve container name: %w", err)
	}
	if err := m.table.records.Put(id, rec); err != nil {
		m.table.names.Release(id)
		return nil, errors.Join(err, m.table.records.Drop(id, m.table.records.Own(rec)))
	}
	c := newContainer(rec, cfg, sb)
	m.table.ByID.Put(id, c)
	sb.Add(memberOf{c, m.lifecycle, m.stopper})
	return c, nil
}

// plan is what a container is made of before it is started. img is not looked at by the undos.
func (r *recipe) plan(c *Container, img image.Image) step.Plan {
	return step.Plan{
		{{Name: "bundle", Do: r.bundles.makeBundle(c), Undo: r.bundles.removeBundle(c)}},
		{{Name: "snapshot", Do: r.bundles.prepare(c), Undo: r.bundles.removeSnapshot(c)}},
		{{Name: "rootfs", Do: r.bundles.mountRootfs(c), Undo: r.bundles.unmountRootfs(c)}},
		{{Name: "images", Do: r.bundles.mountImages(c), Undo: r.bundles.unmountImages(c)}},
		{{Name: "volumes", Do: r.bundles.makeVolumes(c), Undo: r.bundles.removeVolumes(c)}},
		{{Name: "specification", Do: r.spec.writeSpec(c, img), Undo: nil}},
	}
}

// noImage is for plans that are only undone.
var noImage image.Image
