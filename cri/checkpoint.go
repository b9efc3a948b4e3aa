package cri

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
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-node/berth/cri/checkpoint"
	"github.com/berth-node/berth/internal/filetree"
)

// checkpointTimeout is how long a checkpoint may take when the client does not say it.
const checkpointTimeout = 5 * time.Minute

// CheckpointContainer writes an archive of a running container, which goes on running. Where CRIU is missing, or cannot work on
// this kernel, it answers with the code Unimplemented and names what is missing.
func (s *Server) CheckpointContainer(ctx context.Context, r *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	return call(ctx, "CheckpointContainer", func(ctx context.Context) (*runtimeapi.CheckpointContainerResponse, error) {
		c, _, err := s.ctrs.running(r.GetContainerId())
		if err != nil {
			return nil, err
		}
		limit := seconds(r.GetTimeout())
		if limit == 0 {
			limit = checkpointTimeout
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		if err := s.ctrs.checkpoint(ctx, c, r.GetLocation()); err != nil {
			return nil, fmt.Errorf("checkpoint container %s: %w", c.id, err)
		}
		return &runtimeapi.CheckpointContainerResponse{}, nil
	})
}

// checkpoint writes the archive to location. The container's lock is not taken: what dumps its processes notices when they end, and
// whoever wants to stop the container need not wait.
func (cs *containers) checkpoint(ctx context.Context, c *container, location string) (err error) {
	if err := checkLocation(location); err != nil {
		return err
	}
	criu, err := checkpoint.FindCRIU(ctx)
	if err != nil {
		return err
	}
	if !c.dumping.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: another checkpoint of it is being made", errPrecondition)
	}
	defer c.dumping.Store(false)
	d, err := checkpoint.NewDir(cs.paths.checkpoints(), c.id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	if err := cs.dump(ctx, c, criu, d); err != nil {
		return err
	}
	if err := cs.describe(ctx, c, d); err != nil {
		return err
	}
	return d.Pack(ctx, location)
}

// checkLocation refuses what could only fail when all the work is done.
func checkLocation(location string) error {
	if !filepath.IsAbs(location) {
		return invalidf("location %q: must be the absolute path of the archive to be written", location)
	}
	if _, err := os.Lstat(location); err == nil {
		return fmt.Errorf("location %s: %w", location, errExists)
	}
	if info, err := os.Stat(filepath.Dir(location)); err != nil || !info.IsDir() {
		return invalidf("location %s: there is no directory %s", location, filepath.Dir(location))
	}
	return nil
}

func (cs *containers) dump(ctx context.Context, c *container, criu checkpoint.CRIU, d checkpoint.Dir) error {
	b, err := os.ReadFile(cs.paths.spec(c.id))
	if err != nil {
		return err
	}
	if err := os.WriteFile(d.Path(checkpoint.SpecFile), b, 0o600); err != nil {
		return err
	}
	if o := c.sandbox.external(); o != nil {
		return cs.external.Checkpoint(ctx, o, c.id, d.Images(), string(d))
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return fmt.Errorf("read %s: %w", cs.paths.spec(c.id), err)
	}
	return criu.Dump(ctx, checkpoint.Container{Pid: c.record().Pid, Rootfs: cs.paths.rootfs(c.id), Spec: &spec}, d)
}

// describe puts beside the dump what else a checkpoint has.
func (cs *containers) describe(ctx context.Context, c *container, d checkpoint.Dir) error {
	rec, status := c.record(), containerStatus(c)
	handler := c.sandbox.record().Handler
	if handler == "" {
		handler = "berth"
	}
	files := map[string]any{
		checkpoint.ConfigFile: checkpoint.Config{
			ID: c.id, Name: c.cfg.GetMetadata().GetName(), Runtime: handler,
			RootfsImage: status.GetImage().GetImage(), RootfsImageName: status.GetImage().GetImage(), RootfsImageRef: status.GetImageRef(),
			CreatedTime: time.Unix(0, rec.CreatedAt), CheckpointedAt: time.Now(),
		},
		checkpoint.StatusFile: status,
		checkpoint.TimesFile:  checkpoint.Times{CreatedAt: rec.CreatedAt, StartedAt: rec.StartedAt, Pid: rec.Pid},
	}
	deleted, err := cs.diffRootfs(ctx, c, d.Path(checkpoint.RootfsDiffFile))
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

func (cs *containers) diffRootfs(ctx context.Context, c *container, path string) (deleted []string, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return cs.snaps.Diff(ctx, c.id, f)
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

// removeCheckpoint removes what a crash has left of a checkpoint. Who dumped the container may have been killed, too.
func (s *Server) removeCheckpoint(id string) error {
	var err error
	if c, ok := s.ctrs.byID.exact(id); ok && c.record().State == containerRunning {
		err = checkpoint.UnlockNetwork(c.record().Pid)
	}
	return errors.Join(err, filetree.RemoveAll(context.Background(), filepath.Join(s.machine.paths.checkpoints(), id)))
}
