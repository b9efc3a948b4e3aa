package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk is a runtime whose images are all there is on a file system of 1000 bytes.
type disk struct {
	images     []*runtimeapi.Image
	containers []*runtimeapi.Container
	keeps      string // ID of an image that it does not remove
	away       error
	others     int64 // bytes of the file system that are no image's
	inodes     uint64
}

func (d *disk) ListImages(context.Context, *runtimeapi.ListImagesRequest) (*runtimeapi.ListImagesResponse, error) {
	return &runtimeapi.ListImagesResponse{Images: d.images}, d.away
}

func (d *disk) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return &runtimeapi.ListContainersResponse{Containers: d.containers}, nil
}

func (d *disk) RemoveImage(_ context.Context, r *runtimeapi.RemoveImageRequest) (*runtimeapi.RemoveImageResponse, error) {
	if r.GetImage().GetImage() == d.keeps {
		return nil, errors.New("it stays")
	}
	d.images = slices.DeleteFunc(slices.Clone(d.images), func(i *runtimeapi.Image) bool {
		return i.GetId() == r.GetImage().GetImage() && i.GetSpec().GetRuntimeHandler() == r.GetImage().GetRuntimeHandler()
	})
	return &runtimeapi.RemoveImageResponse{}, nil
}

func (d *disk) ImageFsInfo(context.Context, *runtimeapi.ImageFsInfoRequest) (*runtimeapi.ImageFsInfoResponse, error) {
	return &runtimeapi.ImageFsInfoResponse{ImageFilesystems: []*runtimeapi.FilesystemUsage{{
		FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: "/images"}, InodesUsed: &runtimeapi.UInt64Value{Value: uint64(10 * len(d.images))},
	}}}, nil
}

func (d *disk) statfs(path string, buf *unix.Statfs_t) error {
	if path != "/images" {
		return unix.ENOENT
	}
	used := d.others
	for _, i := range d.images {
		used += int64(i.GetSize())
	}
	*buf = unix.Statfs_t{Blocks: 100, Bavail: uint64(1000-used) / 10, Bsize: 10, Files: d.inodes, Ffree: d.inodes - uint64(10*len(d.images))}
	return nil
}

func (d *disk) add(id string, size uint64) *runtimeapi.Image {
	img := &runtimeapi.Image{Id: id, RepoTags: []string{"registry.test/" + id + ":1"}, RepoDigests: []string{"registry.test/" + id + "@sha256:1"}, Size: size}
	d.images = append(d.images, img)
	return img
}

func (d *disk) left() string {
	var out []string
	for _, i := range d.images {
		out = append(out, i.GetId()+i.GetSpec().GetRuntimeHandler())
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

type told []string

func (t *told) Node(typ, reason, format string, args ...any) {
	*t = append(*t, typ+" "+reason+" "+fmt.Sprintf(format, args...))
}

func collector(d *disk, p Policy, wanted ...string) (*Collector, *told) {
	events := &told{}
	return New(Config{Policy: p, Runtime: d, Events: events, Wanted: func() []string { return wanted }, statfs: d.statfs}), events
}

var policy = Policy{High: 85, Low: 80, MinAge: time.Minute}

func collect(t *testing.T, c *Collector, at time.Time) {
	t.Helper()
	if err := c.Collect(t.Context(), at); err != nil {
		t.Error(err)
	}
}

func removed(t *testing.T, c *Collector, reason string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(c.Metrics())
	families, err := r.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "kubelet_image_garbage_collected_total" {
		t.Fatalf("metrics: %v, %v", families, err)
	}
	for _, m := range families[0].GetMetric() {
		if m.GetLabel()[0].GetValue() == reason {
			return m.GetCounter().GetValue()
		}
	}
	t.Fatalf("nothing is counted for %s", reason)
	return 0
}

func TestNeed(t *testing.T) {
	for _, c := range []struct {
		capacity, available, bytes int64
		used                       int
	}{
		{1000, 160, 0, 84},
		{1000, 150, 50, 85},
		{1000, 0, 200, 100},
		{1000, 1000, 0, 0},
		{999, 151, 48, 85}, // 15.1 percent are free, which is 15
	} {
		bytes, used := policy.need(c.capacity, c.available)
		if bytes != c.bytes || used != c.used {
			t.Errorf("%d of %d: free %d at %d %%, want %d at %d %%", c.available, c.capacity, bytes, used, c.bytes, c.used)
		}
	}
}

// Below the high threshold nothing goes, above it the least recently used until the low one is reached.
func TestLeastRecentlyUsedGoFirst(t *testing.T) {
	d, start := &disk{}, time.Now()
	for _, id := range []string{"a", "b", "c", "d"} {
		d.add(id, 200)
	}
	c, events := collector(d, policy)
	d.containers = []*runtimeapi.Container{{ImageId: "a"}, {ImageRef: "registry.test/b@sha256:1"}}
	collect(t, c, start)
	d.containers = []*runtimeapi.Container{{ImageId: "a"}, {Image: &runtimeapi.ImageSpec{Image: "registry.test/c:1"}}}
	collect(t, c, start.Add(2*time.Minute))
	d.containers = []*runtimeapi.Container{{ImageId: "a"}}
	collect(t, c, start.Add(4*time.Minute))
	if got := d.left(); got != "a b c d" {
		t.Errorf("at 80 %%: %s", got)
	}
	d.others = 100
	collect(t, c, start.Add(5*time.Minute))
	if got := d.left(); got != "a b c" { // d was never used
		t.Errorf("at 90 %%: %s", got)
	}
	d.others = 300
	collect(t, c, start.Add(6*time.Minute))
	if got := d.left(); got != "a c" {
		t.Errorf("at 90 %% again: %s", got)
	}
	if got := removed(t, c, ReasonSpace); got != 2 || len(*events) != 0 {
		t.Errorf("counted %f, told %q", got, *events)
	}
}

// Images have inodes, which may be short where there is room enough.
func TestInodesAreShort(t *testing.T) {
	d, start := &disk{inodes: 300}, time.Now()
	for i := range 28 {
		d.add(string(rune('a'+i)), 1)
	}
	c, _ := collector(d, policy)
	collect(t, c, start)
	collect(t, c, start.Add(2*time.Minute))
	if got := len(d.images); got != 28 {
		t.Errorf("with 20 inodes of 300: %d images", got)
	}
	d.inodes = 290 // 10 are free, 14 are the least, 28 enough
	collect(t, c, start.Add(4*time.Minute))
	if got := len(d.images); got != 26 {
		t.Errorf("with 10 inodes of 290: %d images", got)
	}
	d.inodes = 0
	collect(t, c, start.Add(6*time.Minute))
	if got := len(d.images); got != 26 {
		t.Errorf("with inodes as they are needed: %d images", got)
	}
}

func TestWhatStays(t *testing.T) {
	d, start := &disk{}, time.Now()
	d.add("used", 100)
	d.add("wanted", 100)
	d.add("pinned", 100).Pinned = true
	d.containers = []*runtimeapi.Container{{ImageId: "used", State: runtimeapi.ContainerState_CONTAINER_EXITED}}
	c, events := collector(d, policy, "registry.test/wanted:1")
	collect(t, c, start)
	d.add("young", 600)
	err := c.Collect(t.Context(), start.Add(time.Hour))
	if got := d.left(); got != "pinned used wanted young" {
		t.Errorf("left: %s", got)
	}
	if err == nil || len(*events) != 1 || !strings.HasPrefix((*events)[0], "Warning FreeDiskSpaceFailed Failed to garbage collect required amount of images. Attempted to free 100 bytes, but only found 0 bytes") {
		t.Errorf("%v, told %q", err, *events)
	}
	collect(t, c, start.Add(time.Hour+time.Minute))
	if got := d.left(); got != "pinned used wanted" {
		t.Errorf("when it is older: %s", got)
	}
}

// Pods may name images by their IDs, or by what these begin with.
func TestWantedByID(t *testing.T) {
	d, start := &disk{}, time.Now()
	for _, id := range []string{"sha256:0a11", "sha256:0b22", "0c33", "sha256:0d44", "sha256:0e55"} {
		d.add(id, 190).RepoTags = nil
	}
	c, _ := collector(d, policy, "0a", "sha256:0b22", "0c33", "sha256:", "d44")
	if _, err := c.Prune(t.Context(), start, false); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Prune(t.Context(), start.Add(time.Hour), false); err != nil {
		t.Fatal(err)
	}
	if got := d.left(); got != "0c33 sha256:0a11 sha256:0b22" {
		t.Errorf("left: %s", got)
	}
}

func TestAge(t *testing.T) {
	d := &disk{}
	d.add("old", 1)
	d.add("used", 1)
	d.containers = []*runtimeapi.Container{{ImageId: "used"}}
	p := policy
	p.MaxAge, p.High = time.Hour, 100
	c, _ := collector(d, p)
	if err := c.detect(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	collect(t, c, c.began.Add(time.Hour))
	if got := d.left(); got != "old used" {
		t.Errorf("after the age that it is given: %s", got)
	}
	d.containers = nil
	d.add("new", 1)
	collect(t, c, c.began.Add(time.Hour+time.Second))
	if got := d.left(); got != "new used" {
		t.Errorf("after more: %s", got)
	}
	collect(t, c, c.began.Add(2*time.Hour+2*time.Second))
	if got := d.left(); got != "" {
		t.Errorf("after the ages of all: %s", got)
	}
	if got := removed(t, c, ReasonAge); got != 3 {
		t.Errorf("counted %f", got)
	}
}

// What was there at the start is as old as the runtime says that it is. An image of a time that has not come yet is of
// a clock that was wrong.
func TestRestarted(t *testing.T) {
	d := &disk{}
	for _, name := range []string{"unknown", "old", "new", "future"} {
		d.add(name, 1)
	}
	p := policy
	p.MinAge = time.Hour
	c, _ := collector(d, p)
	c.cfg.Came = func() map[string]time.Time {
		return map[string]time.Time{
			"old": c.began.Add(-2 * time.Hour), "new": c.began.Add(-time.Minute), "future": c.began.Add(1000 * time.Hour),
		}
	}
	if err := c.detect(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	names := func(now time.Time) string {
		var out []string
		for _, r := range c.removable(now) {
			out = append(out, r.image.GetId())
		}
		return strings.Join(out, " ")
	}
	if got := names(c.began); got != "future unknown old" {
		t.Errorf("after the start %q may go", got)
	}
	if got := names(c.began.Add(59 * time.Minute)); got != "future unknown old new" {
		t.Errorf("an hour after it came %q may go", got)
	}
}

// Runtimes may have an image for each of their handlers; and one that cannot be removed does not keep the others.
func TestHandlersAndErrors(t *testing.T) {
	d, start := &disk{keeps: "a"}, time.Now()
	d.add("a", 400)
	d.add("b", 300).Spec = &runtimeapi.ImageSpec{Image: "b", RuntimeHandler: "-kata"}
	d.add("b", 200)
	c, _ := collector(d, policy)
	if err := c.Collect(t.Context(), start); err == nil { // all are too young
		t.Error("nothing was found, and that is no error")
	}
	if err := c.Collect(t.Context(), start.Add(time.Hour)); err == nil || !strings.Contains(err.Error(), "it stays") {
		t.Errorf("error: %v", err)
	}
	if got := d.left(); got != "a b-kata" {
		t.Errorf("left: %s", got)
	}
}

func TestFailuresAreTold(t *testing.T) {
	d := &disk{away: errors.New("the runtime is away")}
	c, events := collector(d, policy)
	c.once(t.Context())
	if len(*events) != 0 {
		t.Errorf("the first time: %q", *events)
	}
	c.once(t.Context())
	if len(*events) != 1 || !strings.HasPrefix((*events)[0], "Warning ImageGCFailed list images: the runtime is away") {
		t.Errorf("the second time: %q", *events)
	}
}

func TestValidate(t *testing.T) {
	for want, p := range map[string]Policy{
		"":                            policy,
		"--image-gc-high-threshold":   {High: 101, Low: 80},
		"--image-gc-low-threshold":    {High: 80, Low: 80},
		"--minimum-image-ttl":         {High: 85, Low: 80, MinAge: -1},
		"--maximum-image-gc-age 1m0s": {High: 85, Low: 80, MinAge: 2 * time.Minute, MaxAge: time.Minute},
	} {
		if err := p.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", p, err, want)
		}
	}
}

// TestFree: what is removed at once is what may be, the least recently used first, whatever the threshold from which on
// it goes by itself.
func TestFree(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		others int64
		left   string
		room   bool
	}{
		"down to the low threshold": {Policy{High: 95, Low: 50}, 400, "c used", true},
		"one at least":              {Policy{High: 95, Low: 90}, 0, "b c used", true},
		"never":                     {Policy{High: 100, Low: 50}, 600, "a b c used", false},
		"all are young":             {Policy{High: 95, Low: 50, MinAge: time.Hour}, 600, "a b c used", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &disk{others: c.others}
			for _, id := range []string{"a", "b", "c", "used"} {
				d.add(id, 50)
			}
			d.containers = []*runtimeapi.Container{{ImageId: "used"}}
			gc, _ := collector(d, c.policy)
			room, err := gc.Free(t.Context(), time.Now())
			if err != nil || room != c.room || d.left() != c.left {
				t.Errorf("got %v, %v, left %q, want %v, %q", room, err, d.left(), c.room, c.left)
			}
		})
	}
}

// TestFreeIfFull has something that is no image have no room. Where the file system has some, that is not why.
func TestFreeIfFull(t *testing.T) {
	for name, c := range map[string]struct {
		policy Policy
		others int64
		left   string
		room   bool
	}{
		"full":         {Policy{High: 95, Low: 90}, 800, "c used", true},
		"not full":     {Policy{High: 95, Low: 85}, 700, "a b c used", false},
		"never":        {Policy{High: 100, Low: 85}, 800, "a b c used", false},
		"too much":     {Policy{High: 95, Low: 10}, 800, "used", true},
		"all are used": {Policy{High: 95, Low: 85, MinAge: time.Hour}, 800, "a b c used", false},
	} {
		t.Run(name, func(t *testing.T) {
			d := &disk{others: c.others}
			for _, id := range []string{"a", "b", "c", "used"} {
				d.add(id, 50)
			}
			d.containers = []*runtimeapi.Container{{ImageId: "used"}}
			gc, _ := collector(d, c.policy)
			if room, _ := gc.FreeIfFull(t.Context(), time.Now()); room != c.room || d.left() != c.left {
				t.Errorf("got %v, left %q, want %v, %q", room, d.left(), c.room, c.left)
			}
		})
	}
}

// TestFreedMeanwhile has two find no room at the same time: what was removed for the one is room for the other.
func TestFreedMeanwhile(t *testing.T) {
	d := &disk{others: 800}
	for _, id := range []string{"a", "b", "c"} {
		d.add(id, 50)
	}
	gc, _ := collector(d, Policy{High: 90, Low: 5})
	began := time.Now()
	for _, free := range []func(context.Context, time.Time) (bool, error){gc.FreeIfFull, gc.FreeIfFull, gc.Free} {
		if room, _ := free(t.Context(), began); !room || d.left() != "" {
			t.Errorf("got %v, left %q", room, d.left())
		}
	}
	d.add("d", 50)
	d.others = 950
	if room, _ := gc.FreeIfFull(t.Context(), began); !room || d.left() != "d" {
		t.Errorf("there was room already: got %v, left %q", room, d.left())
	}
	if room, _ := gc.FreeIfFull(t.Context(), time.Now()); !room || d.left() != "" {
		t.Errorf("no room since: got %v, left %q", room, d.left())
	}
}
