// Command bench measures berth and its peers side by side, in one run on one machine, and prints ratios.
//
//	go run ./test/bench            # everything (as root, with the binaries in ./bin)
//	go run ./test/bench -only pod,hundred -peers berth,containerd
//
// Every peer runs with its own defaults on directories, a socket and a bridge of its own. The image is present before a
// pod is timed, and nothing is warmed up that a user would not have: the first pods of each peer are discarded only so
// that page cache and lazily loaded plugins are in the state they have on a node that has run a pod before.
//
// "CRI" figures are single calls over the socket, on a runtime that has nothing else to do and with many pods there;
// Version is what a call costs that does nothing. Of the calls that only look, the CPU time of the runtime's processes
// is taken, too, and for berth also what they take in-process, which is how its agent makes them.
//
// "Running" is the moment at which the container's own process has made a file in a directory of the host, seen by
// inotify. "Gone" is the moment at which the kernel has no interface on the peer's bridge and no cgroup of its pods any
// more.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// A peer is something that runs pods. Its methods are called from one goroutine, but for start and remove of several
// pods.
type peer interface {
	Name() string
	// Up starts it; Down stops it and removes everything that it made.
	Up(ctx context.Context) error
	Down() error
	// Apply asks for pods and returns as soon as the user would have the prompt back; Remove takes them away.
	Apply(ctx context.Context, pods []pod) error
	Remove(ctx context.Context, pods []pod) error
	// Traces counts what the kernel still has of its pods.
	Traces() int
	// Processes are the resident processes that the peer needs for its pods, the containers' own excluded.
	Processes() []int
	// Pull pulls and unpacks an image of a registry on loopback; Forget removes it.
	Pull(ctx context.Context, ref string) error
	Forget(ctx context.Context, ref string) error
}

// pod is what each peer is asked to run: one container of the busybox image that makes the file marker and then sleeps.
type pod struct {
	name   string
	marker string // directory of the host, mounted at /b
	// program is run instead, if there is one: it makes the file itself.
	program string
}

func (p pod) command() []string {
	if p.program != "" {
		return []string{p.program, "/b", p.name}
	}
	return p.running("sleep 1000000")
}

// running is a command that puts the marker and then executes program.
func (p pod) running(program string) []string {
	return []string{"sh", "-c", "> /b/" + p.name + "; exec " + program}
}

const image = "berth.test/busybox:1"

type bench struct {
	dir   string
	bin   string
	peers []peer
	runs  int
	many  int

	bombs, others int
	busy          bool

	also []string      // directories of more builds of berth, whose cost is measured beside it
	own  time.Duration // CPU time that this process has used in the group of what it measures

	report report
}

// report is what was measured.
type report struct{ rows []row }

type row struct {
	what   string
	unit   string
	values map[string]float64
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("bench: ")
	only := flag.String("only", "memory,pod,hundred,cri,pull,probes,volumes,cost,eviction", "measurements, separated by commas")
	peers := flag.String("peers", "berth,containerd,podman,floor,crun,runc",
		"peers, separated by commas; the last three are only for cost")
	b := bench{}
	flag.StringVar(&b.bin, "bin", "bin", "directory of berth's binaries and the test image")
	flag.IntVar(&b.runs, "runs", 20, "how often one pod is started")
	flag.IntVar(&b.many, "many", 100, "how many pods are started at once")
	flag.IntVar(&b.bombs, "bombs", 50, "how many pods are evicted")
	flag.IntVar(&b.others, "others", 3, "how many other pods are there then")
	flag.BoolVar(&b.busy, "busy", false, "have all processors do something else meanwhile")
	flag.Func("also", "directory of another build of berth, whose cost is measured beside; may be given again",
		func(dir string) error {
			b.also = append(b.also, dir)
			return nil
		})
	flag.Parse()
	if os.Geteuid() != 0 {
		log.Fatal("needs root")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.run(ctx, strings.Split(*peers, ","), strings.Split(*only, ",")); err != nil {
		stop()
		log.Fatal(err)
	}
}

func (b *bench) run(ctx context.Context, peers, only []string) (err error) {
	if b.dir, err = os.MkdirTemp("/var/tmp", "berth-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	before, err := saveNetfilter()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, before.restore()) }()
	if b.bin, err = filepath.Abs(b.bin); err != nil {
		return err
	}
	all := []peer{newBerth(b), newContainerd(b), newPodman(b)}
	for _, p := range all {
		if slices.Contains(peers, p.Name()) {
			b.peers = append(b.peers, p)
		}
	}
	// What has been measured is printed also when the rest fails.
	defer func() { b.report.print(b.peers) }()
	if slices.Contains(only, "cost") {
		if err := b.runCosts(ctx, peers); err != nil {
			return fmt.Errorf("cost: %w", err)
		}
		if len(only) == 1 {
			return ctx.Err()
		}
	}
	for _, p := range b.peers {
		if err := b.measure(ctx, p, only); err != nil {
			return fmt.Errorf("%s: %w", p.Name(), err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// measure runs one peer, the others being down, so that none disturbs another on two cores.
func (b *bench) measure(ctx context.Context, p peer, only []string) (err error) {
	if err := p.Up(ctx); err != nil {
		return fmt.Errorf("start: %w", errors.Join(err, p.Down()))
	}
	defer func() { err = errors.Join(err, p.Down()) }()
	for _, m := range []struct {
		name string
		run  func(context.Context, peer) error
	}{
		{"memory", b.idleMemory},
		{"pod", b.onePod},
		{"hundred", b.hundred},
		{"cri", b.cri},
		{"pull", b.pull},
		{"probes", b.probes},
		{"volumes", b.volumes},
		{"eviction", b.eviction}, // the last: its node has other flags
	} {
		if !slices.Contains(only, m.name) {
			continue
		}
		log.Printf("%s: %s", p.Name(), m.name)
		if err := m.run(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

func (t *report) record(p peer, what, unit string, v float64) {
	for _, r := range t.rows {
		if r.what == what {
			r.values[p.Name()] = v
			return
		}
	}
	t.rows = append(t.rows, row{what, unit, map[string]float64{p.Name(): v}})
}

// print compares the peers with the first of them.
func (t *report) print(peers []peer) {
	if len(t.rows) == 0 {
		return
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "\t")
	for _, p := range peers {
		fmt.Fprintf(w, "%s\t", p.Name())
	}
	for _, p := range peers[1:] {
		fmt.Fprintf(w, "%s / %s\t", p.Name(), peers[0].Name())
	}
	fmt.Fprintln(w)
	for _, r := range t.rows {
		fmt.Fprintf(w, "%s\t", r.what)
		for _, p := range peers {
			if v, ok := r.values[p.Name()]; ok {
				fmt.Fprintf(w, "%.1f %s\t", v, r.unit)
			} else {
				fmt.Fprint(w, "-\t")
			}
		}
		for _, p := range peers[1:] {
			first := r.values[peers[0].Name()]
			if v, ok := r.values[p.Name()]; ok && first > 0 {
				fmt.Fprintf(w, "%.1f\t", v/first)
			} else {
				fmt.Fprint(w, "-\t")
			}
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Microseconds()) / 1000
}
