package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	evictionPods      = 1 << 30   // bytes that pods have together, so that the machine is safe from them
	evictionThreshold = 100 << 20 // that have to be left of it
	bombTime          = time.Minute
)

// eviction lets bombs go off, one after the other, which take memory as fast as the kernel gives it, beside pods that
// do nothing. The clock starts when somebody outside of the agent sees the threshold crossed. It stops twice: when the
// agent has ordered the bomb's end, by its own word, and when its process is gone, by the kernel's, which has to take
// back the memory first.
func (b *bench) eviction(ctx context.Context, p peer) error {
	node, ok := p.(*berth)
	if !ok {
		return nil // a static pod is never evicted by kubelet
	}
	if err := node.Down(); err != nil {
		return err
	}
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return err
	}
	total := int64(machine.Totalram) * int64(machine.Unit)
	node.more = []string{
		fmt.Sprintf("--system-reserved=memory=%d", total-evictionPods), "--eviction-pressure-transition-period=1s",
		fmt.Sprintf("--eviction-hard=memory.available<%d", evictionThreshold), "--max-pods=500",
	}
	if err := node.Up(ctx); err != nil {
		return err
	}
	if err := b.beside(ctx, node); err != nil {
		return err
	}
	defer b.keepBusy()()
	var ordered, gone []time.Duration
	for i := range b.bombs {
		o, g, err := b.bomb(ctx, node, "bomb"+strconv.Itoa(i))
		if err != nil {
			return fmt.Errorf("bomb %d: %w", i, err)
		}
		ordered, gone = append(ordered, o), append(gone, g)
	}
	for what, d := range map[string][]time.Duration{"order": ordered, "process gone": gone} {
		b.report.record(p, "eviction: crossing to "+what+", median", "ms", median(d))
		b.report.record(p, "eviction: crossing to "+what+", 99 of 100", "ms", float64(d[len(d)*99/100].Microseconds())/1000)
	}
	ended, killed, err := node.victims()
	if err != nil {
		return err
	}
	b.report.record(p, "eviction: other pods that ended", "", float64(ended))
	b.report.record(p, "eviction: kills by the kernel", "", float64(killed))
	return nil
}

// beside starts pods that have what they need.
func (b *bench) beside(ctx context.Context, node *berth) error {
	var pods []pod
	for i := range b.others {
		pods = append(pods, pod{name: "beside" + strconv.Itoa(i), marker: b.dir})
	}
	if err := node.Apply(ctx, pods); err != nil {
		return err
	}
	return await(ctx, bombTime*2, func() bool {
		for _, x := range pods {
			if _, err := os.Stat(filepath.Join(b.dir, x.name)); err != nil {
				return false
			}
		}
		return true
	})
}

// keepBusy has every processor do something else until the function that it returns is called.
func (b *bench) keepBusy() func() {
	if !b.busy {
		return func() {}
	}
	var all []*exec.Cmd
	for range runtime.NumCPU() {
		c := exec.Command("sh", "-c", "while :; do :; done")
		if c.Start() == nil {
			all = append(all, c)
		}
	}
	return func() {
		for _, c := range all {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
	}
}

// bomb lets one go off.
func (b *bench) bomb(ctx context.Context, node *berth, name string) (ordered, gone time.Duration, err error) {
	x := pod{name: name, marker: b.dir}
	text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: Never
  containers:
  - {name: main, image: %s, command: [/test/eat, "8000"], volumeMounts: [{name: test, mountPath: /test, readOnly: true}]}
  volumes: [{name: test, hostPath: {path: %s}}]
`, name, image, b.bin+"/test")
	if err := node.apply([]pod{x}, func(pod) string { return text }); err != nil {
		return 0, 0, err
	}
	crossed, end, err := watchBomb(ctx)
	if err != nil {
		return 0, 0, err
	}
	var order time.Time
	err = await(ctx, bombTime, func() bool {
		order, err = node.orderOf(name)
		return err == nil
	})
	if err != nil {
		return 0, 0, err
	}
	if err := node.Remove(ctx, []pod{x}); err != nil {
		return 0, 0, err
	}
	// The next one is let in when the condition is over.
	err = await(ctx, bombTime, func() bool {
		out, err := node.command("eviction", "status").Output()
		return err == nil && !strings.Contains(string(out), "True")
	})
	return max(0, order.Sub(crossed)), end.Sub(crossed), err
}

// watchBomb looks at what pods have as often as it can, and returns when there was too little left and when the
// bomb's process was gone.
func watchBomb(ctx context.Context) (crossed, end time.Time, err error) {
	limit := time.Now().Add(bombTime)
	bomb := -1
	for time.Now().Before(limit) && ctx.Err() == nil {
		if bomb < 0 {
			bomb = findBomb()
		} else {
			ready, err := unix.Poll([]unix.PollFd{{Fd: int32(bomb), Events: unix.POLLIN}}, 0)
			if ready > 0 && err == nil {
				unix.Close(bomb)
				if crossed.IsZero() {
					return crossed, end, errors.New("the bomb ended before it was one")
				}
				return crossed, time.Now(), nil
			}
		}
		if used, err := unreclaimable(); crossed.IsZero() && err == nil && evictionPods-used < evictionThreshold {
			crossed = time.Now()
		}
		time.Sleep(200 * time.Microsecond)
	}
	switch {
	case bomb < 0:
		err = errors.New("the bomb has not started")
	case crossed.IsZero():
		err = errors.New("the bomb has not crossed the threshold")
	default:
		err = errors.New("the bomb goes on")
	}
	return crossed, end, err
}

// benchGroup is where the kernel has the memory of all pods.
func benchGroup() string {
	for _, dir := range []string{"/sys/fs/cgroup/memory/berth-bench/kubepods", "/sys/fs/cgroup/berth-bench/kubepods"} {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return ""
}

// findBomb returns a descriptor of the bomb's process, or -1 while there is none.
func findBomb() int {
	files, _ := filepath.Glob(benchGroup() + "/besteffort/pod*/*/cgroup.procs")
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for pid := range strings.FieldsSeq(string(data)) {
			if comm, _ := os.ReadFile("/proc/" + pid + "/comm"); strings.TrimSpace(string(comm)) != "eat" {
				continue
			}
			n, _ := strconv.Atoi(pid)
			if fd, err := unix.PidfdOpen(n, 0); err == nil {
				return fd
			}
		}
	}
	return -1
}

// unreclaimable is what pods have without the file cache, in bytes.
func unreclaimable() (int64, error) {
	dir := benchGroup()
	usage, err := os.ReadFile(dir + "/memory.usage_in_bytes")
	keys := []string{"total_cache", "total_shmem"}
	if err != nil {
		usage, err = os.ReadFile(dir + "/memory.current")
		keys = []string{"file", "shmem"}
	}
	if err != nil {
		return 0, err
	}
	stat, err := os.ReadFile(dir + "/memory.stat")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(usage)), 10, 64)
	return n - statOf(stat, keys[0]) + statOf(stat, keys[1]), err
}

func statOf(stat []byte, key string) int64 {
	for line := range strings.Lines(string(stat)) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), " "); k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}

// await waits until something is so.
func await(ctx context.Context, patience time.Duration, so func() bool) error {
	limit := time.Now().Add(patience)
	for !so() {
		if time.Now().After(limit) || ctx.Err() != nil {
			return errors.Join(errors.New("waited in vain"), ctx.Err())
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func (p *berth) command(args ...string) *exec.Cmd {
	return exec.Command(p.b.bin+"/berth", append([]string{"--run-dir=" + p.dir + "/run"}, args...)...)
}

type evicted struct {
	Pod struct {
		Name string `json:"name"`
	} `json:"pod"`
	Ordered time.Time `json:"ordered"`
}

func (p *berth) decisions() ([]evicted, error) {
	out, err := p.command("eviction", "why", "-o", "json").Output()
	var all struct {
		Decisions []evicted `json:"decisions"`
	}
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	return all.Decisions, err
}

// orderOf is when the agent has told a pod to end.
func (p *berth) orderOf(name string) (time.Time, error) {
	all, err := p.decisions()
	if err != nil {
		return time.Time{}, err
	}
	i := slices.IndexFunc(all, func(e evicted) bool { return strings.HasPrefix(e.Pod.Name, name+"-") })
	if i < 0 {
		return time.Time{}, fmt.Errorf("%s was not evicted", name)
	}
	return all[i].Ordered, nil
}

// victims counts the pods that ended although they were no bombs, and how often the kernel has killed for want of
// memory.
func (p *berth) victims() (ended, killed int, err error) {
	out, err := p.command("pods", "--no-headers").Output()
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "beside") && !strings.Contains(line, "Running") {
			ended++
			log.Print(line)
		}
	}
	for _, file := range []string{"/memory.oom_control", "/memory.events"} {
		data, _ := os.ReadFile(benchGroup() + file)
		killed += int(statOf(data, "oom_kill"))
	}
	return ended, killed, nil
}
