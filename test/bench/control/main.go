// Command control measures berth-control beside Kubernetes' own API server and etcd, one after the other, on this
// machine, and prints both with their ratio.
//
//	go run ./test/bench/control -control bin/berth-control -etcd bin/cluster/etcd \
//		-apiserver bin/cluster/kube-apiserver
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
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
}

func main() {
	log.SetFlags(0)
	var c config
	flag.StringVar(&c.control, "control", "bin/berth-control", "program of berth's control plane")
	flag.StringVar(&c.apiserver, "apiserver", "bin/cluster/kube-apiserver", "program of Kubernetes' API server; empty: not measured")
	flag.StringVar(&c.etcd, "etcd", "bin/cluster/etcd", "program of etcd")
	flag.IntVar(&c.objects, "objects", 10_000, "pods that are listed and watched")
	flag.IntVar(&c.watchers, "watchers", 1_000, "clients that watch them")
	flag.IntVar(&c.idle, "idle", 30, "seconds of nothing that CPU and memory are measured over")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ours, err := measure(ctx, c, startOurs)
	if err != nil {
		log.Fatalf("berth-control: %v", err)
	}
	var theirs []figure
	if c.apiserver != "" {
		if theirs, err = measure(ctx, c, startTheirs); err != nil {
			log.Fatalf("kube-apiserver and etcd: %v", err)
		}
	}
	report(ours, theirs)
}

func report(ours, theirs []figure) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\tberth-control\tkube-apiserver + etcd\tratio\t")
	for i, f := range ours {
		line := fmt.Sprintf("%s\t%.4g %s\t", f.name, f.value, f.unit)
		if i < len(theirs) {
			line += fmt.Sprintf("%.4g %s\t%.2f\t", theirs[i].value, f.unit, f.value/theirs[i].value)
		}
		fmt.Fprintln(w, strings.TrimRight(line, " "))
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
	for _, step := range []func(context.Context, config, *plane) ([]figure, error){idle, applies, creates, gets, lists, watches} {
		figures, err := step(ctx, c, p)
		if err != nil {
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
