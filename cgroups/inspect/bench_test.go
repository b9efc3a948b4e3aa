package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/cgroupstest"
	"github.com/berth-node/berth/cgroups/kube"
)

// BenchmarkCommands measures the commands on a node of a hundred pods, each with a group for its sandbox and one for
// its container and a process in both: CPU time and time of one run, without the start of the program and without the
// agent, for which a file of specifications stands. With BERTH_BENCH_HOLD=DURATION the groups stay that long, with the
// flags printed, for the program itself.
func BenchmarkCommands(b *testing.B) {
	runDir, flags, pid := hundredPods(b)
	if hold, err := time.ParseDuration(os.Getenv("BERTH_BENCH_HOLD")); err == nil {
		fmt.Printf("berth cgroups --run-dir %s %s find %s\n", runDir, strings.Join(flags, " "), pid)
		time.Sleep(hold)
	}
	for _, command := range []string{"find PID", "find pod-7", "find inode:1", "tree", "tree -p memory", "tree -o json", "show pod-7", "explain pod-7", "check", "top -n 1 --interval 100ms"} {
		words := append(strings.Fields(strings.ReplaceAll(command, "PID", pid)), flags...)
		b.Run(command, func(b *testing.B) {
			least := time.Hour // a machine that does something else as well makes CPU time longer, too
			for b.Loop() {
				before := cpuTime(b)
				cmd := Command(func() string { return runDir }, byUsage)
				cmd.SetArgs(words)
				cmd.SetOut(io.Discard)
				cmd.SetErr(io.Discard)
				if err := cmd.ExecuteContext(b.Context()); err != nil && !errors.Is(err, ErrProblems) && !errors.Is(err, ErrNotFound) {
					b.Fatal(err)
				}
				least = min(least, cpuTime(b)-before)
			}
			b.ReportMetric(float64(least.Microseconds())/1000, "least-cpu-ms")
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/op")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// hundredPods makes the groups, and returns the run directory, the flags that say where they are and the process of one
// container.
func hundredPods(b *testing.B) (runDir string, flags []string, pid string) {
	b.Helper()
	h, root := cgroupstest.Group(b, cgroups.Open)
	tree := kube.NewTree(h, root)
	if err := tree.Setup(); err != nil {
		b.Fatal(err)
	}
	runDir = b.TempDir()
	var pods corev1.PodList
	for i := range 100 {
		p := makePod(fmt.Sprintf("pod-%d", i), fmt.Sprintf("%03x11111-1111-4111-8111-111111111111", i+0x100), 0,
			makeContainer("app", amount("cpu", "50m", "memory", "32Mi"), amount("cpu", "100m", "memory", "64Mi")))
		path, err := tree.EnsurePod(&p)
		if err != nil {
			b.Fatal(err)
		}
		sandbox := strings.Repeat("f", 60) + fmt.Sprintf("%04d", i)
		_, id, _ := strings.Cut(p.Status.ContainerStatuses[0].ContainerID, "://")
		cgroupstest.Create(b, h, path+"/"+id, kube.ContainerResources(&p, &p.Spec.Containers[0], kube.Options{}))
		cgroupstest.Create(b, h, path+"/"+sandbox, nil)
		for _, group := range []string{id, sandbox} {
			pid = strconv.Itoa(cgroupstest.Process(b, h, path+"/"+group, "exec sleep 10000").Process.Pid)
		}
		if err := os.MkdirAll(filepath.Join(runDir, "sandboxes", sandbox), 0o700); err != nil {
			b.Fatal(err)
		}
		pods.Items = append(pods.Items, p)
	}
	list, err := json.Marshal(pods)
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(runDir, "pods.json")
	if err := os.WriteFile(file, list, 0o600); err != nil {
		b.Fatal(err)
	}
	return runDir, []string{"--cgroup-root", root, "--pods", file, "--log-dir", b.TempDir()}, pid
}
