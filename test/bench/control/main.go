// Command control measures berth-control beside Kubernetes' own API server and etcd, one after the other, on this
// machine, and prints both with their ratio.
//
//	go run ./test/bench/control -control bin/berth-control -etcd bin/cluster/etcd \
//		-apiserver bin/cluster/kube-apiserver
//
// -whole has berth-control run its controllers and its scheduler, too, which Kubernetes has in processes of their own;
// -only measures what is named. What the scheduler and the controllers do has a control plane of its own for each part,
// and is measured only where it is named, by turns, with Kubernetes' scheduler or controller manager beside its API
// server: schedule and bind (-workloads says of what), latency, and emptied. Where the program of one of them is empty
// the other is measured alone: several at the same time have the same of a machine that does something else as well.
// -profiles DIR has berth-control say where its CPU time goes, and what lives in its heap.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// figure is one that is measured, in its unit; less is better unless it says otherwise.
type figure struct {
	name, unit string
	value      float64
}

type config struct {
	control, apiserver, etcd string
	kubeScheduler, manager   string
	objects, watchers, idle  int
	most                     int
	whole                    bool
	controllers, scheduler   bool // what a control plane is started with
	only, workloads          []string
	profiles                 string
}

// step measures one thing. Objects that are read, listed and watched are those of create and pods.
type step struct {
	name string
	take func(context.Context, config, *plane) ([]figure, error)
}

func steps() []step {
	return []step{
		{"idle", idle},
		{"apply", applies},
		{"create", creates},
		{"get", gets},
		{"plainget", plainGets},
		{"pods", pods},
		{"getpod", podGets},
		{"list", lists},
		{"watch", watches},
	}
}

// part measures what has a control plane of its own, in a directory that is empty.
type part struct {
	name string
	take func(ctx context.Context, c config, start starter, dir string) ([]figure, error)
}

// parts are those that are named.
func parts(c config) ([]part, error) {
	var all []part
	for _, w := range workloads() {
		if !slices.Contains(c.workloads, w.name) {
			continue
		}
		w = w.atMost(c.most)
		for _, of := range []struct {
			name string
			take func(context.Context, config, workload, starter, string) ([]figure, error)
		}{{"schedule", schedules}, {"bind", binds}} {
			all = append(all, part{of.name, func(ctx context.Context, c config, start starter, dir string) ([]figure, error) {
				return of.take(ctx, c, w, start, dir)
			}})
		}
		c.workloads = slices.DeleteFunc(c.workloads, func(name string) bool { return name == w.name })
	}
	if len(c.workloads) > 0 {
		return nil, fmt.Errorf("there is no workload %s", strings.Join(c.workloads, ", "))
	}
	all = append(all, part{"latency", latency}, part{"emptied", emptied}, part{"fleet", fleets})
	return slices.DeleteFunc(all, func(p part) bool { return !slices.Contains(c.only, p.name) }), nil
}

func main() {
	log.SetFlags(0)
	var c config
	flag.StringVar(&c.control, "control", "bin/berth-control", "program of berth's control plane; empty: not measured")
	flag.StringVar(&c.apiserver, "apiserver", "bin/cluster/kube-apiserver", "program of Kubernetes' API server; empty: not measured")
	flag.StringVar(&c.etcd, "etcd", "bin/cluster/etcd", "program of etcd")
	flag.IntVar(&c.objects, "objects", 10_000, "pods that are listed and watched")
	flag.IntVar(&c.watchers, "watchers", 1_000, "clients that watch them")
	flag.IntVar(&c.idle, "idle", 30, "seconds of nothing that CPU and memory are measured over")
	flag.BoolVar(&c.whole, "whole", false, "berth-control with controllers and scheduler")
	only := flag.String("only", "", "what is measured, of idle, apply, create, get, plainget, pods, getpod, list and watch (empty: all of these) "+
		"or of schedule, bind, latency, emptied and fleet")
	flag.StringVar(&c.kubeScheduler, "scheduler", "bin/cluster/kube-scheduler", "program of Kubernetes' scheduler")
	flag.StringVar(&c.manager, "manager", "bin/cluster/kube-controller-manager", "program of Kubernetes' controller manager")
	of := flag.String("workloads", workloads()[0].name, "what schedule and bind are of, of "+strings.Join(names(), ", "))
	flag.IntVar(&c.most, "most", 0, "pods that schedule and bind measure at most, with nodes and pods before in proportion; 0: as many as scheduler_perf has")
	flag.StringVar(&c.profiles, "profiles", "", "directory for profiles of berth-control, of each of them")
	flag.Parse()
	if *only != "" {
		c.only = strings.Split(*only, ",")
	}
	c.workloads = strings.Split(*of, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		stop()
		log.Fatal(err)
	}
}

func names() []string {
	var all []string
	for _, w := range workloads() {
		all = append(all, w.name)
	}
	return all
}

func run(ctx context.Context, c config) error {
	own, err := parts(c)
	if err != nil {
		return err
	}
	known := func(name string) bool {
		return slices.ContainsFunc(steps(), func(s step) bool { return s.name == name })
	}
	if len(c.only) == 0 || slices.ContainsFunc(c.only, known) {
		own = append([]part{{"steps", measure}}, own...)
	}
	for _, p := range own {
		var ours, theirs []figure
		if c.control != "" {
			if ours, err = within(ctx, c, p, startOurs); err != nil {
				return fmt.Errorf("berth-control: %s: %w", p.name, err)
			}
		}
		if c.apiserver != "" {
			c.whole = false // its controllers and scheduler are processes of their own
			if theirs, err = within(ctx, c, p, startTheirs); err != nil {
				return fmt.Errorf("kube-apiserver and etcd: %s: %w", p.name, err)
			}
		}
		report(ours, theirs)
	}
	return nil
}

// within measures a part in a directory of its own.
func within(ctx context.Context, c config, p part, start starter) ([]figure, error) {
	dir, err := os.MkdirTemp("/var/tmp", "berth-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	return p.take(ctx, c, start, dir)
}

// report prints the figures of both, or of the one that was measured.
func report(ours, theirs []figure) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	if len(ours) == 0 || len(theirs) == 0 {
		for _, f := range append(ours, theirs...) {
			fmt.Fprintf(w, "%s\t%.4g %s\n", f.name, f.value, f.unit)
		}
	} else {
		fmt.Fprintln(w, "\tberth-control\tkube-apiserver + etcd\tratio")
		for i, f := range ours {
			fmt.Fprintf(w, "%s\t%.4g %s\t%.4g %s\t%.2f\n", f.name, f.value, f.unit, theirs[i].value, f.unit, f.value/theirs[i].value)
		}
	}
	_ = w.Flush()
}

// measure takes the figures of one control plane, step by step.
func measure(ctx context.Context, c config, start starter, dir string) ([]figure, error) {
	c.controllers, c.scheduler = c.whole, c.whole
	p, err := start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.processes.stop()
	all := []figure{{"from its start to /readyz", "s", p.ready.Seconds()}}
	if err := p.begins(ctx); err != nil {
		return nil, err
	}
	for _, s := range steps() {
		if len(c.only) > 0 && !slices.Contains(c.only, s.name) {
			continue
		}
		end := p.profile(ctx, s.name)
		figures, err := s.take(ctx, c, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		if err := end(); err != nil {
			return nil, err
		}
		all = append(all, figures...)
	}
	return all, nil
}

// idle is what nothing costs.
func idle(ctx context.Context, c config, p *plane) ([]figure, error) {
	if err := wait(ctx, 10*time.Second); err != nil { // what follows the start
		return nil, err
	}
	before, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, time.Duration(c.idle)*time.Second); err != nil {
		return nil, err
	}
	after, err := p.processes.cpu()
	if err != nil {
		return nil, err
	}
	rss, err := p.processes.rss()
	return []figure{
		{"idle: resident memory", "MB", rss},
		{"idle: of a core", "%", 100 * (after - before).Seconds() / float64(c.idle)},
	}, err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
