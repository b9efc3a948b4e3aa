// Package images removes images that no pod needs: those that were not used for long, and the least recently used ones
// when the file system of the images gets full. The rules, their names and their events are a kubelet's.
//
// When an image was used last is remembered in memory only, as in a kubelet: after a restart its age is counted from
// then. Since when it is here a runtime may know, so that one which was pulled right before a restart has its time to
// be used.
package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Runtime is what has the images.
type Runtime interface {
	ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error)
	ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error)
	RemoveImage(context.Context, *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error)
	ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error)
}

// Events hears of what went wrong.
type Events interface {
	Node(typ, reason, format string, args ...any)
}

// Policy says what is removed when.
type Policy struct {
	High, Low int           // percent of the file system: from High on images are removed, down to Low; High 100: never
	MinAge    time.Duration // of an image that may be removed for want of space, since it was first seen
	MaxAge    time.Duration // of an image that no container uses; 0: it may stay
}

// Config is what a [Collector] works with.
type Config struct {
	Policy
	Runtime Runtime
	Events  Events
	// Wanted are the names of the images of the pods that there are, which are kept although no container has been made
	// of them yet.
	Wanted func() []string
	// Left hears which images were there at a moment, by ID, after some were removed.
	Left func(ctx context.Context, ids map[string]bool, at time.Time) error
	// Came says since when images are here, by ID. Nil: of those that are there at the start that is not known.
	Came func() map[string]time.Time
	// Parts are the bytes of what each image is made of, by ID and a key that those have in common who share a part.
	// Nil: what an image takes is taken for its own.
	Parts func() map[string]map[string]int64
	// Content removes what no image explains, as what failed pulls have left. Nil: the runtime sees to that.
	Content func(context.Context) error
	Period  time.Duration // 0: 5 min
	Log     *slog.Logger

	statfs func(path string, buf *unix.Statfs_t) error // nil: the kernel's
}

// Collector removes images. Its methods can be called at any time.
type Collector struct {
	cfg Config

	mu      sync.Mutex
	images  map[string]*record
	failing bool
	began   time.Time
	freed   time.Time // when there was more room at last, as somebody had none
	removed *prometheus.CounterVec
}

// record is what is remembered of an image. The zero time is before the start.
type record struct {
	image       *runtimeapi.Image
	first, used time.Time // seen, used by a container
	inUse       bool      // as of the last look
}

// Why images are removed, as kubelet's metric has it.
const (
	ReasonAge   = "age"
	ReasonSpace = "space"
)

// New returns a Collector that does nothing before [Collector.Run].
func New(c Config) *Collector {
	if c.Period <= 0 {
		c.Period = 5 * time.Minute
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Wanted == nil {
		c.Wanted = func() []string { return nil }
	}
	if c.statfs == nil {
		c.statfs = unix.Statfs
	}
	removed := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kubelet_image_garbage_collected_total",
		Help: "Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
	}, []string{"reason"})
	for _, reason := range []string{ReasonAge, ReasonSpace, ReasonPrune} {
		removed.WithLabelValues(reason)
	}
	return &Collector{cfg: c, images: map[string]*record{}, began: time.Now(), removed: removed}
}

// Metrics counts what was removed, as a kubelet does.
func (c *Collector) Metrics() prometheus.Collector { return c.removed }

// Run collects every period until ctx ends. No event tells how full a file system is, and nothing depends on the
// moment.
func (c *Collector) Run(ctx context.Context) {
	// What is there at the start is as old as can be, where it is not known since when: a node that is full, and
	// restarts again and again, would never have room otherwise.
	c.mu.Lock()
	err := c.detect(ctx, time.Time{})
	c.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		c.cfg.Log.Warn("images are not known", "error", err)
	}
	tick := time.NewTicker(c.cfg.Period)
	defer tick.Stop()
	for {
		c.once(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// once collects and tells what went wrong. The first failure is only logged, since a runtime may be on its way up.
func (c *Collector) once(ctx context.Context) {
	err := c.Collect(ctx, time.Now())
	if ctx.Err() != nil {
		return
	}
	c.mu.Lock()
	again := c.failing
	c.failing = err != nil
	c.mu.Unlock()
	if err == nil {
		return
	}
	c.cfg.Log.Warn("images are not collected", "error", err)
	if again {
		c.cfg.Events.Node(corev1.EventTypeWarning, "ImageGCFailed", "%v", err)
	}
}

// Collect removes what is too old, and then what the file system is too full for.
func (c *Collector) Collect(ctx context.Context, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.detect(ctx, now); err != nil {
		return err
	}
	errs := []error{c.removeOld(ctx, now)}
	if c.cfg.Content != nil {
		errs = append(errs, c.cfg.Content(ctx))
	}
	if c.cfg.High < 100 {
		s, err := c.space(ctx)
		if err == nil {
			_, err = c.removeForSpace(ctx, now, s)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, c.tell(ctx, now))...)
}

// tell tells which images are left.
func (c *Collector) tell(ctx context.Context, at time.Time) error {
	if c.cfg.Left == nil {
		return nil
	}
	ids := map[string]bool{}
	for _, r := range c.images {
		ids[r.image.GetId()] = true
	}
	return c.cfg.Left(ctx, ids, at)
}

func (c *Collector) removeOld(ctx context.Context, now time.Time) error {
	_, err := c.remove(ctx, c.tooOld(now), ReasonAge, func(int64) bool { return false })
	return err
}

// removeForSpace removes what the file system is too full for.
func (c *Collector) removeForSpace(ctx context.Context, now time.Time, s space) (int64, error) {
	need, used := c.cfg.need(s.capacity, s.available)
	inodes := needInodes(s.inodes, s.inodesFree)
	if need <= 0 && inodes <= 0 {
		return 0, nil
	}
	c.cfg.Log.Info("images are removed, since their file system is full", "used", used, "high", c.cfg.High, "low", c.cfg.Low, "bytes", need, "inodes", inodes)
	freed, err := c.remove(ctx, c.removable(now), ReasonSpace, func(freed int64) bool {
		if freed < need || inodes <= 0 {
			return freed >= need
		}
		// How many an image has nobody says but the runtime, of all together; one that does not count them loses all
		// that may go.
		after, err := c.space(ctx)
		return err == nil && s.inodesUsed-after.inodesUsed >= inodes
	})
	if err == nil && freed < need {
		// kubelet's words
		err = fmt.Errorf("Failed to garbage collect required amount of images. Attempted to free %d bytes, but only found %d bytes eligible to free.", need, freed)
		c.cfg.Events.Node(corev1.EventTypeWarning, "FreeDiskSpaceFailed", "%v", err)
	}
	return freed, err
}

// remove removes images until there is enough, and returns their bytes. One that cannot be removed does not keep the
// others.
func (c *Collector) remove(ctx context.Context, list []*record, reason string, enough func(freed int64) bool) (freed int64, err error) {
	var errs []error
	parts := c.parts()
	for _, r := range list {
		if enough(freed) || ctx.Err() != nil {
			break
		}
		if c.wantedSince(r) {
			continue
		}
		id := r.image.GetId()
		spec := &runtimeapi.ImageSpec{Image: id, RuntimeHandler: r.image.GetSpec().GetRuntimeHandler()}
		if _, err := c.cfg.Runtime.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec}); err != nil {
			errs = append(errs, fmt.Errorf("remove image %s: %w", id, err))
			continue
		}
		bytes := parts.take(r.image)
		c.cfg.Log.Info("image is removed", "image", id, "names", r.image.GetRepoTags(), "reason", reason, "bytes", bytes)
		delete(c.images, keyOf(r.image))
		freed += bytes
		c.removed.WithLabelValues(reason).Inc()
	}
	return freed, errors.Join(errs...)
}

// wantedSince says whether a pod has come since the look that needs an image. What takes long is the removal of those
// before it.
func (c *Collector) wantedSince(r *record) bool { return usedBy(nil, c.cfg.Wanted()).has(r.image) }

// detect brings what is known of the images up to date.
func (c *Collector) detect(ctx context.Context, now time.Time) error {
	images, err := c.cfg.Runtime.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	containers, err := c.cfg.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	c.see(images.GetImages(), usedBy(containers.GetContainers(), c.cfg.Wanted()), now)
	return nil
}

// space is what the images' file system has.
type space struct {
	capacity, available int64 // bytes
	inodes, inodesFree  int64
	inodesUsed          int64 // of images
}

// space asks the runtime where the file system is, and the kernel how large.
func (c *Collector) space(ctx context.Context) (s space, err error) {
	info, err := c.cfg.Runtime.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		return s, fmt.Errorf("ask for the file system of images: %w", err)
	}
	if len(info.GetImageFilesystems()) == 0 {
		return s, errors.New("the runtime has no file system of images")
	}
	first := info.GetImageFilesystems()[0]
	path := first.GetFsId().GetMountpoint()
	var fs unix.Statfs_t
	if err := c.cfg.statfs(path, &fs); err != nil {
		return s, fmt.Errorf("look at the file system of images at %s: %w", path, err)
	}
	capacity, available := int64(fs.Blocks)*fs.Bsize, int64(fs.Bavail)*fs.Bsize
	if capacity <= 0 {
		c.cfg.Events.Node(corev1.EventTypeWarning, "InvalidDiskCapacity", "invalid capacity %d on image filesystem", capacity)
		return s, fmt.Errorf("invalid capacity %d on image filesystem", capacity)
	}
	return space{
		capacity: capacity, available: min(available, capacity),
		inodes: int64(fs.Files), inodesFree: int64(fs.Ffree), inodesUsed: int64(first.GetInodesUsed().GetValue()),
	}, nil
}
