package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-node/berth/cri/checkpoint"
	"github.com/berth-node/berth/cri/fault"
	"github.com/berth-node/berth/cri/host"
)

// Checkpoints makes checkpoints of containers.
type Checkpoints struct{ host *host.Host }

// Checkpoint writes the archive to location. The container's lock is not taken: what dumps its processes notices when
// they end, and whoever wants to stop the container need not wait.
func (p *Checkpoints) Checkpoint(ctx context.Context, c *Container, location string) (err error) {
	if err := checkLocation(location); err != nil {
		return err
	}
	criu, err := checkpoint.FindCRIU(ctx)
	if err != nil {
		return err
	}
	if !c.dumping.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: another checkpoint of it is being made", fault.ErrPrecondition)
	}
	defer c.dumping.Store(false)
	d, err := checkpoint.NewDir(p.host.Paths.Checkpoints(), c.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	if err := p.dump(ctx, c, criu, d); err != nil {
		return err
	}
	if err := p.describe(ctx, c, d); err != nil {
		return err
	}
	return d.Pack(ctx, location)
}

// checkLocation refuses what could only fail when all the work is done.
func checkLocation(location string) error {
	if !filepath.IsAbs(location) {
		return fault.Invalidf("location %q: must be the absolute path of the archive to be written", location)
	}
	if _, err := os.Lstat(location); err == nil {
		return fmt.Errorf("location %s: %w", location, fault.ErrExists)
	}
	if info, err := os.Stat(filepath.Dir(location)); err != nil || !info.IsDir() {
		return fault.Invalidf("location %s: there is no directory %s", location, filepath.Dir(location))
	}
	return nil
}

func (p *Checkpoints) dump(ctx context.Context, c *Container, criu checkpoint.CRIU, d checkpoint.Dir) error {
	b, err := os.ReadFile(p.host.Paths.Container(c.ID).Spec())
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.Path(checkpoint.SpecFile), b, 0o600); err != nil {
		return err
	}
	if o := c.Sandbox.External(); o != nil {
		return p.host.Runtimes.External.Checkpoint(ctx, o, c.ID, d.Images(), string(d))
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("read %s: %w", p.host.Paths.Container(c.ID).Spec(), err)
	}
	return criu.Dump(ctx, checkpoint.Container{Pid: c.Record().Pid, Rootfs: p.host.Paths.Container(c.ID).Rootfs(), Spec: &spec}, d)
}

// describe puts beside the dump what else a checkpoint has.
func (p *Checkpoints) describe(ctx context.Context, c *Container, d checkpoint.Dir) error {
	rec, status := c.Record(), containerStatus(c)
	handler := c.Sandbox.Record().Handler
	if handler == "" {
		handler = "berth"
	}
	files := map[string]any{
		checkpoint.ConfigFile: checkpoint.Config{
			ID: c.ID, Name: c.Config.GetMetadata().GetName(), Runtime: handler,
			RootfsImage: status.GetImage().GetImage(), RootfsImageName: status.GetImage().GetImage(), RootfsImageRef: status.GetImageRef(),
			CreatedTime: time.Unix(0, rec.CreatedAt), CheckpointedAt: time.Now(),
		},
		checkpoint.StatusFile: status,
		checkpoint.TimesFile:  checkpoint.Times{CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt, Pid: rec.Pid},
	}
	deleted, err := p.diffRootfs(ctx, c, d.Path(checkpoint.RootfsDiffFile))
	if err != nil {
		return err
	}
	if len(deleted) > 0 {
		files[checkpoint.DeletedFile] = deleted
	}
	for name, v := range files {
		if err := d.PutJSON(name, v); err != nil {
			return err
		}
	}
	return copyLog(rec.LogPath, d.Path(checkpoint.ContainerLog))
}

func (p *Checkpoints) diffRootfs(ctx context.Context, c *Container, path string) (deleted []string, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return p.host.Snaps.Diff(ctx, c.ID, f)
}

func copyLog(from, to string) error {
	if from == "" {
		return nil
	}
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
