// Package eviction has the tests of how soon the kernel's events tell the sensor that memory goes.
package eviction

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-node/berth/cgroups/pressure"
	"github.com/berth-node/berth/eviction/sensor"
	"github.com/berth-node/berth/eviction/signal"
)

const (
	mib = 1 << 20
	// capacity is what the node of these tests has for pods: the limit of a group.
	capacity = 2 << 30
	// hard is what has to be left.
	hard = 400 * mib
	// pace is how much the bomb takes in a second.
	pace = 2 << 30
)

// bombGroup has the process be a bomb in this group, which says when less than bombHard is left of bombSignal, and ends
// when less than bombLeast is.
const (
	bombGroup  = "BERTH_EVICTION_TEST_GROUP"
	bombSignal = "BERTH_EVICTION_TEST_SIGNAL"
	bombHard   = "BERTH_EVICTION_TEST_HARD"
	bombLeast  = "BERTH_EVICTION_TEST_LEAST"
)

func TestMain(m *testing.M) {
	if group := os.Getenv(bombGroup); group != "" {
		fmt.Fprintln(os.Stderr, bomb(group))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// bomb takes memory until it is killed. Whenever too little is left that was enough before, it says when that was, and
// how much it took in a second until then: others may give memory back meanwhile.
func bomb(group string) error {
	if err := os.WriteFile(group+"/cgroup.procs", []byte("0"), 0); err != nil {
		return err
	}
	var limits [2]int64
	for i, name := range []string{bombHard, bombLeast} {
		var err error
		if limits[i], err = strconv.ParseInt(os.Getenv(name), 10, 64); err != nil {
			return err
		}
	}
	hard, least := limits[0], limits[1]
	node := signal.NewNode(signal.Paths{Allocatable: group})
	of := signal.Signal(os.Getenv(bombSignal))
	const step = mib
	short := false
	for start, taken := time.Now(), 0; ; taken += step {
		time.Sleep(time.Duration(float64(taken)/pace*float64(time.Second)) - time.Since(start))
		if _, err := unix.Mmap(-1, 0, step, unix.PROT_READ|unix.PROT_WRITE,
			unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			return err
		}
		r, err := node.Memory()
		if err != nil {
			return err
		}
		if was := short; !was && r[of].Available < hard {
			fmt.Println(r[of].Time.UnixNano(), float64(taken)/time.Since(start).Seconds())
		}
		if short = r[of].Available < hard; r[of].Available < least {
			return fmt.Errorf("%d MiB are left, and nobody ends this", r[of].Available/mib)
		}
	}
}

// world is a group with a limit, and a sensor.
type world struct {
	group  string
	of     signal.Signal
	hard   int64 // less has not to be left of the signal
	least  int64 // the bomb does not take what is left then
	sensor *sensor.Sensor
	armed  chan struct{}
	times  int64 // the alarms were asked for
}

// alarm tells when it is set.
type alarm struct {
	sensor.Alarm
	set chan struct{}
}

func (a alarm) Set(grown []int64) error {
	err := a.Alarm.Set(grown)
	select {
	case a.set <- struct{}{}:
	default:
	}
	return err
}

func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// newWorld is one in which the group is the node, by its limit.
func newWorld(t testing.TB) *world {
	t.Helper()
	w := newGroup(t, capacity)
	w.of, w.hard = signal.AllocatableMemoryAvailable, hard
	w.sense(t, w.group, signal.Paths{Allocatable: w.group, NodeFS: "/"})
	return w
}

// newNode is one in which the node is this machine, whose other processes take and give back memory all the time. So no
// size of a bomb would do: it may take whatever it needs for the limit to be met, were all other memory free, and ends
// by itself when there is as much less as there was more at first.
func newNode(t testing.TB) *world {
	t.Helper()
	paths := signal.Paths{}
	r, err := signal.NewNode(paths).Memory()
	if err != nil {
		t.Fatal(err)
	}
	all := r[signal.MemoryAvailable]
	distance := min(2<<30, all.Available/4)
	const own = 64 * mib // the bomb has some memory before it takes any, and the kernel some for it
	w := newGroup(t, all.Capacity-all.Available+2*distance+own)
	w.of, w.hard, w.least = signal.MemoryAvailable, all.Available-distance, all.Available-2*distance
	watched := w.group
	if !unified() {
		watched = "/sys/fs/cgroup/memory"
	}
	w.sense(t, watched, paths)
	return w
}

// newGroup makes a group of this test's own.
func newGroup(t testing.TB, limit int64) *world {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes control groups")
	}
	top, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if unified() {
		top, file = "/sys/fs/cgroup", "memory.max"
		if err := os.WriteFile(top+"/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
			t.Fatal(err)
		}
	}
	w := &world{group: fmt.Sprintf("%s/berth-eviction-test-%d", top, os.Getpid()), armed: make(chan struct{}, 1)}
	if err := os.Mkdir(w.group, 0o755); err != nil {
		t.Skipf("needs a hierarchy of memory: %v", err)
	}
	t.Cleanup(func() {
		for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			if err := unix.Rmdir(w.group); err == nil {
				return
			} else if time.Now().After(deadline) {
				t.Errorf("remove %s: %v", w.group, err)
				return
			}
		}
	})
	if err := os.WriteFile(w.group+"/"+file, []byte(strconv.FormatInt(limit, 10)), 0); err != nil {
		t.Fatal(err)
	}
	if unified() {
		_ = os.WriteFile(w.group+"/memory.swap.max", []byte("0"), 0)
	}
	return w
}

// sense runs a sensor until the test ends, with an alarm of the group that is watched.
func (w *world) sense(t testing.TB, watched string, paths signal.Paths) {
	t.Helper()
	watcher, err := pressure.New()
	if err != nil {
		t.Fatal(err)
	}
	a := alarm{set: make(chan struct{}, 1)}
	if unified() {
		a.Alarm, err = watcher.GroupGrowth(watched, sensor.MemoryRate())
	} else {
		a.Alarm, err = watcher.Usage(watched)
	}
	if err != nil {
		t.Fatal(err)
	}
	w.armed = a.set
	c := sensor.Config{
		Node:   signal.NewNode(paths),
		Alarms: []sensor.Alarm{a}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	psi, err := watcher.PSI("/proc/pressure/memory",
		pressure.Trigger{Stall: 50 * time.Millisecond, Window: 500 * time.Millisecond})
	if err == nil {
		c.Sources = append(c.Sources, psi)
	} else if !errors.Is(err, pressure.ErrUnsupported) {
		t.Fatal(err)
	}
	w.sensor = sensor.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { w.sensor.Run(ctx); close(done) }()
	t.Cleanup(func() {
		cancel()
		<-done
		if err := watcher.Close(); err != nil {
			t.Error(err)
		}
	})
}

// available reads what is left.
func (w *world) available(t testing.TB) int64 {
	t.Helper()
	r, err := w.sensor.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r[w.of].Available
}

// explode lets a bomb go and ends it as soon as the sensor has told that less is left than has to be. It returns how
// long that took from when it was so, and how much the bomb took in a second; 0 when it was seen before the bomb could
// say so. What was too late is an error.
func (w *world) explode(t testing.TB) (took time.Duration, rate float64, late error) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), bombGroup+"="+w.group, bombSignal+"="+string(w.of), fmt.Sprintf("%s=%d", bombHard, w.hard),
		fmt.Sprintf("%s=%d", bombLeast, w.least), "GOMAXPROCS=1")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make(chan []string, 1) // at the bomb's end
	go func() {
		var lines []string
		for in := bufio.NewScanner(out); in.Scan(); {
			lines = append(lines, in.Text())
		}
		said <- lines
	}()
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	deadline := time.After(3 * time.Minute) // an emulated machine is slow
	var seen time.Time
	for seen.IsZero() {
		select {
		case <-w.sensor.Wake():
			if w.available(t) < w.hard {
				seen = time.Now()
			}
		case lines := <-said:
			return 0, 0, fmt.Errorf("the bomb has ended, and the sensor has told nothing since %q", lines)
		case <-deadline:
			t.Fatalf("the sensor tells nothing; %d MiB are left", w.available(t)/mib)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, line := range <-said {
		var at int64
		var of float64
		if _, err := fmt.Sscan(line, &at, &of); err != nil {
			t.Fatalf("the bomb says %q: %v", line, err)
		}
		if since := seen.Sub(time.Unix(0, at)); since > 0 { // the last time before it was seen counts
			took, rate = since, of
		}
	}
	return took, rate, nil
}

// kills is how many processes the kernel has killed in the group.
func (w *world) kills(t testing.TB) string {
	t.Helper()
	file := "/memory.oom_control"
	if unified() {
		file = "/memory.events"
	}
	text, err := os.ReadFile(w.group + file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strings.TrimSpace(n)
		}
	}
	return "0"
}

// rest waits until the sensor has set its alarms for the calm.
func (w *world) rest(t testing.TB) {
	t.Helper()
	w.back(t, capacity-100*mib)
	w.arm(t)
}

// calm waits until more is left again than has to be.
func (w *world) calm(t testing.TB) {
	t.Helper()
	w.back(t, w.hard+1)
}

// back waits until so much is left.
func (w *world) back(t testing.TB, least int64) {
	t.Helper()
	late := time.After(3 * time.Minute)
	for w.available(t) < least {
		select {
		case <-w.sensor.Wake():
		case <-late:
			t.Fatal("the memory is not given back")
		case <-time.After(10 * time.Millisecond): // the kernel does not tell of memory that is given back
		}
	}
}

// arm makes the sensor set its alarms, by a limit that it has not had before, and waits until they are.
func (w *world) arm(t testing.TB) {
	t.Helper()
	select {
	case <-w.armed:
	default:
	}
	w.times++
	w.sensor.Arm(map[signal.Signal][]int64{w.of: {w.hard + hard + w.times, w.hard}})
	select {
	case <-w.armed:
	case <-time.After(2 * time.Minute):
		t.Fatal("the alarms are not set")
	}
}

// BenchmarkBomb prints how long it takes to see that a limit is crossed.
func BenchmarkBomb(b *testing.B) {
	w := newWorld(b)
	var all []time.Duration
	var rates []float64
	for b.Loop() {
		w.rest(b)
		took, rate, err := w.explode(b)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, took)
		if rate > 0 {
			rates = append(rates, rate)
		}
	}
	slices.Sort(all)
	slices.Sort(rates)
	if len(rates) > 0 {
		b.ReportMetric(rates[len(rates)/2]/mib, "MiB/s")
	}
	at := func(share float64) float64 {
		return float64(all[min(len(all)-1, int(share*float64(len(all))))].Microseconds()) / 1000
	}
	b.ReportMetric(at(0.5), "p50-ms")
	b.ReportMetric(at(0.99), "p99-ms")
	b.ReportMetric(at(1), "max-ms")
	if n := w.kills(b); n != "0" {
		b.Errorf("the kernel has killed %s processes", n)
	}
}
