// Command control measures berth-control beside Kubernetes' own API server and etcd, one after the other, on this
// machine, and prints both with their ratio.
//
//	go run ./test/bench/control -control bin/berth-control -etcd bin/cluster/etcd \
//		-apiserver bin/cluster/kube-apiserver
//
// -whole has berth-control run its controllers and its scheduler, too, which Kubernetes has in processes of their own;
// -only measures what is named. Where the program of one of them is empty the other is measured alone: several at the
// same time have the same of a machine that does something else as well. -profiles DIR has berth-control say where its
// CPU time goes, and what lives in its heap.
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
	objects, watchers, idle  int
	whole                    bool
	only                     []string
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
	only := flag.String("only", "", "what is measured, of idle, apply, create, get, plainget, pods, getpod, list and watch; empty: all")
	flag.StringVar(&c.profiles, "profiles", "", "directory for profiles of berth-control, of each of them")
	flag.Parse()
	if *only != "" {
		c.only = strings.Split(*only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var ours, theirs []figure
	var err error
	if c.control != "" {
		if ours, err = measure(ctx, c, startOurs); err != nil {
			log.Fatalf("berth-control: %v", err)
		}
	}
	if c.apiserver != "" {
		if theirs, err = measure(ctx, c, startTheirs); err != nil {
			log.Fatalf("kube-apiserver and etcd: %v", err)
		}
	}
	report(ours, theirs)
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

// measure takes the figures of one control plane.
func measure(ctx context.Context, c config, start func(context.Context, config, string) (*plane, error)) ([]figure, error) {
	dir, err := os.MkdirTemp("/var/tmp", "berth-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p, err := start(ctx, c, dir)
	if err != nil {
		return nil, err
	}
	defer p.stop()
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
	before, err := p.cpu()
	if err != nil {
		return nil, err
	}
	if err := wait(ctx, time.Duration(c.idle)*time.Second); err != nil {
		return nil, err
	}
	after, err := p.cpu()
	if err != nil {
		return nil, err
	}
	rss, err := p.rss()
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
