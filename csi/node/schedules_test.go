package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc/codes"

	"github.com/berth-node/berth/csi"
	"github.com/berth-node/berth/csi/csitest"
)

// TestSchedules has pods get and lose volumes in any order, several a volume and at once, while calls fail in every
// way, the driver ends and the agent is killed between any two steps. In the end just what is wanted is mounted, the
// driver has seen no call that the specification does not allow, and when all pods are gone nothing is left.
// BERTH_CSI_SCHEDULES is how many schedules there are, BERTH_CSI_SEED the first.
func TestSchedules(t *testing.T) {
	n, seed := 24, uint64(time.Now().UnixNano())
	if s, err := strconv.Atoi(os.Getenv("BERTH_CSI_SCHEDULES")); err == nil {
		n = s
	}
	if s, err := strconv.ParseUint(os.Getenv("BERTH_CSI_SEED"), 10, 64); err == nil {
		seed = s
	}
	nodeCalls := func(all ...spec.NodeServiceCapability_RPC_Type) []spec.NodeServiceCapability_RPC_Type { return all }
	stages := spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	for name, o := range map[string]csitest.Options{
		"staged":   {Node: nodeCalls(stages, spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)},
		"unstaged": {Node: nodeCalls(spec.NodeServiceCapability_RPC_GET_VOLUME_STATS), NoController: true},
		"attached": {
			Node:       nodeCalls(stages),
			Controller: []spec.ControllerServiceCapability_RPC_Type{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSchedules(t, o)
			for i := range uint64((n + 2) / 3) {
				s.run(seed + i)
				if t.Failed() {
					t.Fatalf("to see it again: BERTH_CSI_SEED=%d", seed+i)
				}
			}
			t.Logf("%d schedules from %d on, %d calls of the driver, %d faults, %d kills", (n+2)/3, seed, len(s.driver.Calls()), s.faults.Load(), s.kills)
		})
	}
}

// schedules runs one schedule after another with one driver.
type schedules struct {
	t      *testing.T
	driver *csitest.Driver
	root   string

	drivers *csi.Drivers
	m       *Manager
	end     atomic.Bool // the agent is killed: nothing of it goes on beyond its next step
	clock   atomic.Int64
	kills   int
	faults  atomic.Int64

	mu     sync.Mutex // guards rand, which goroutines share
	rand   *rand.Rand
	faulty bool
	wanted map[string]map[string]bool // volumes by pod
	lives  [scheduledPods]int         // a pod that is made again has another UID
	ended  map[string]bool            // pods whose release has begun: they never get anything again
}

const (
	scheduledPods    = 5
	scheduledVolumes = 3
)

func newSchedules(t *testing.T, o csitest.Options) *schedules {
	s := &schedules{t: t, root: t.TempDir(), rand: rand.New(rand.NewPCG(1, 1))}
	o.Roots, o.Decide, o.Respawn = []string{s.root}, s.decide, true
	s.driver = csitest.Start(t, o)
	for v := range scheduledVolumes {
		if err := s.driver.Add(volumeName(v), 1<<20, nil); err != nil {
			t.Fatal(err)
		}
	}
	s.begin()
	t.Cleanup(s.close)
	return s
}

func volumeName(n int) string { return "v" + strconv.Itoa(n) }

// begin starts the agent.
func (s *schedules) begin() {
	s.t.Helper()
	s.end.Store(false)
	s.drivers = csi.NewDrivers(csi.Config{})
	r := csi.Registration{Name: s.driver.Options().Name, Endpoint: s.driver.Options().Socket, Versions: []string{"1.0.0"}}
	s.insist("register the driver", func(ctx context.Context) error { return s.drivers.Register(ctx, r) })
	m, err := New(Config{Root: s.root, Records: filepath.Join(s.root, "csi"), Drivers: s.drivers, Node: "node"})
	if err != nil {
		s.t.Fatal(err)
	}
	if p := m.Problems(); len(p) > 0 {
		s.t.Fatalf("after the start: %v", p)
	}
	// Each look at the clock is later than the longest time that something waits to be tried again.
	m.ledger.now = func() time.Time { return time.Unix(s.clock.Add(int64(2*retryMax/time.Second)), 0) }
	m.step = s.step
	s.m = m
}

func (s *schedules) close() {
	s.m.Close()
	s.drivers.Close()
}

// step ends the goroutines of an agent that is killed.
func (s *schedules) step(string) {
	if s.faultyChance(80) {
		s.end.Store(true)
	}
	if s.end.Load() {
		runtime.Goexit()
	}
}

// chance is true once in n times.
func (s *schedules) chance(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n) == 0
}

func (s *schedules) faultyChance(n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faulty && s.rand.IntN(n) == 0
}

func (s *schedules) pick(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rand.IntN(n)
}

// decide has one call in four go wrong.
func (s *schedules) decide(rpc, _ string) *csitest.Fault {
	if !strings.HasSuffix(rpc, "Volume") || !s.faultyChance(4) {
		return nil
	}
	s.faults.Add(1)
	f := &csitest.Fault{When: []csitest.When{csitest.Before, csitest.Within, csitest.After}[s.pick(3)]}
	wrong := []codes.Code{
		codes.Internal, codes.Unavailable, codes.InvalidArgument, codes.DeadlineExceeded, codes.Aborted, codes.ResourceExhausted,
		codes.FailedPrecondition, codes.Unknown, codes.Canceled, codes.PermissionDenied,
	}
	switch s.pick(12) {
	case 0:
		f.Exit = true
	case 1:
		f.Drop = true
	case 2:
		f.Delay, f.Deaf = time.Duration(s.pick(5))*time.Millisecond, true
	default:
		f.Code = wrong[s.pick(len(wrong))]
	}
	return f
}

func (s *schedules) uid(pod int) string { return fmt.Sprintf("uid-%d-%d", pod, s.lives[pod]) }
func (s *schedules) podDir(uid string) string {
	return filepath.Join(s.m.ledger.layout.root, "pods", uid)
}

func (s *schedules) request(pod int, volume string) Request {
	return Request{
		Volume: Volume{Driver: s.driver.Options().Name, Handle: volume, Name: "pv-" + volume},
		Pod:    Pod{Namespace: "default", Name: "pod-" + strconv.Itoa(pod), UID: s.uid(pod)}, PodDir: s.podDir(s.uid(pod)),
		ReadOnly: pod == 0,
	}
}

// run is one schedule: a few rounds, in each of which some pods get a volume or lose all theirs at once.
func (s *schedules) run(seed uint64) {
	s.t.Helper()
	s.mu.Lock()
	s.rand, s.faulty = rand.New(rand.NewPCG(seed, 0)), true
	s.mu.Unlock()
	s.wanted, s.ended = map[string]map[string]bool{}, map[string]bool{}
	for range 2 + s.pick(6) {
		s.round()
		if s.chance(6) {
			s.driver.Crash()
		}
		if s.end.Load() || s.chance(6) {
			s.restart()
		}
	}
	s.mu.Lock()
	s.faulty = false
	s.mu.Unlock()
	if s.end.Load() {
		s.restart()
	}
	s.converge()
	s.compare("with what is wanted")
	for pod := range scheduledPods {
		s.stop(pod)
	}
	s.converge()
	s.compare("when nobody wants anything")
	s.nothing()
	for _, v := range s.driver.Violations() {
		s.t.Errorf("violation: %s", v)
	}
}

func (s *schedules) restart() {
	s.kills++
	s.close()
	s.begin()
}

// stop has a pod be no more. The next of its name has another UID.
func (s *schedules) stop(pod int) {
	delete(s.wanted, s.uid(pod))
	s.ended[s.uid(pod)] = true
	s.lives[pod]++
}

// round does one thing for each of some pods, all at once.
func (s *schedules) round() {
	var all sync.WaitGroup
	for pod := range scheduledPods {
		if s.chance(2) {
			continue
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
		if s.chance(8) {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(s.pick(3000))*time.Microsecond)
		}
		if s.chance(3) {
			dir := s.podDir(s.uid(pod))
			s.stop(pod)
			all.Go(func() { defer cancel(); _ = s.m.Release(ctx, dir) })
			continue
		}
		volume := volumeName(s.pick(scheduledVolumes))
		if s.wanted[s.uid(pod)] == nil {
			s.wanted[s.uid(pod)] = map[string]bool{}
		}
		s.wanted[s.uid(pod)][volume] = true
		r := s.request(pod, volume)
		all.Go(func() { defer cancel(); _, _ = s.m.Publish(ctx, r) })
	}
	all.Wait()
}

// converge has everybody get what is wanted, as the pods' workers do.
func (s *schedules) converge() {
	s.t.Helper()
	for uid := range s.ended {
		s.insist("release "+uid, func(ctx context.Context) error { return s.m.Release(ctx, s.podDir(uid)) })
	}
	for pod := range scheduledPods {
		want := s.wanted[s.uid(pod)]
		for _, volume := range slices.Sorted(maps.Keys(want)) {
			s.insist("publish "+volume+" to "+s.uid(pod), func(ctx context.Context) error {
				_, err := s.m.Publish(ctx, s.request(pod, volume))
				return err
			})
		}
	}
}

// insist does something until it is done. The driver may be starting.
func (s *schedules) insist(what string, do func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		err := do(ctx)
		if err == nil {
			return
		}
		last = errors.Join(err)
		runtime.Gosched()
		time.Sleep(time.Millisecond)
	}
	s.t.Fatalf("%s: %v; %v", what, last, s.driver.State().Calls)
}

// compare holds the kernel's list of mounts, and the driver's, to what is wanted.
func (s *schedules) compare(when string) {
	s.t.Helper()
	want := map[string]bool{}
	for pod := range scheduledPods {
		for volume := range s.wanted[s.uid(pod)] {
			r := s.request(pod, volume)
			want[s.m.ledger.layout.target(r.Block, r.PodDir, r.Pod.UID, r.Name)] = true
			if slices.Contains(s.driver.Options().Node, spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
				want[s.m.ledger.layout.stage(&r.Volume)] = true
			}
		}
	}
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(s.root))
	if err != nil {
		s.t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range all {
		switch {
		case seen[m.Mountpoint]:
			s.t.Errorf("%s: %s is mounted twice", when, m.Mountpoint)
		case !want[m.Mountpoint]:
			s.t.Errorf("%s: %s is mounted", when, m.Mountpoint)
		}
		seen[m.Mountpoint] = true
	}
	for path := range want {
		if !seen[path] {
			s.t.Errorf("%s: %s is not mounted", when, path)
		}
	}
	if found, err := s.m.Check(s.t.Context()); err != nil || len(found) > 0 {
		s.t.Errorf("%s: the check finds %v, %v", when, found, err)
	}
}

// nothing is what is left when no pod has a volume.
func (s *schedules) nothing() {
	s.t.Helper()
	for id, v := range s.driver.State().Volumes {
		if v.Stage != nil || len(v.Targets) > 0 || len(v.Attached) > 0 {
			s.t.Errorf("the driver still has %s staged %v, published %v, attached %v", id, v.Stage, v.Targets, v.Attached)
		}
		if _, err := os.Stat(s.driver.Data(id)); err != nil {
			s.t.Error(err)
		}
	}
	if list := s.m.List(); len(list) > 0 {
		s.t.Errorf("there is still %v", list)
	}
	err := filepath.WalkDir(s.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path != filepath.Join(s.root, "csi/journal") {
			err = fmt.Errorf("there still is %s", path)
		}
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
}
