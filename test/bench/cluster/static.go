package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// static measures what the same pods take of the agent's memory where no API server has them.
func (b *bench) static(ctx context.Context, api *agent) (err error) {
	a := &agent{b: b, alone: true}
	defer func() {
		if down := a.Down(); err == nil {
			err = down
		}
	}()
	if err := a.Up(ctx); err != nil {
		return err
	}
	if err := until(ctx, "the agent answers", func() error { _, err := a.ask(ctx, "/metrics"); return err }); err != nil {
		return err
	}
	cpu, err := a.processors()
	if err != nil {
		return err
	}
	begun := time.Now()
	if err := b.runStatic(ctx, a); err != nil {
		return err
	}
	b.figures.record(api, fmt.Sprintf("%d static pods at once -> all run", b.many), "s", time.Since(begun).Seconds())
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(rests):
	}
	now, err := a.processors()
	if err != nil {
		return err
	}
	b.figures.record(api, "static -> run: CPU time a pod, agent", "ms", (now[0]-cpu[0])*1000/float64(b.many))
	b.figures.record(api, "static -> run: CPU time a pod, whole node", "ms", (now[1]-cpu[1])*1000/float64(b.many))
	return b.remembered(api, fmt.Sprintf("%d static pods", b.many), []int{a.cmd.Process.Pid})
}

// processors are how long the agent, and the whole node, have had a processor.
func (a *agent) processors() (s [2]float64, err error) {
	if s[0], err = processor(a.cmd.Process.Pid); err != nil {
		return s, err
	}
	s[1], err = nodeProcessor()
	return s, err
}

// runStatic has as many static pods as others run.
func (b *bench) runStatic(ctx context.Context, a *agent) error {
	dir, err := os.MkdirTemp(b.dir, "markers-")
	if err != nil {
		return err
	}
	for i := range b.many {
		pod := b.pod(a, fmt.Sprintf("static-%d", i), dir)
		pod.APIVersion, pod.Kind, pod.Spec.NodeName = "v1", "Pod", ""
		text, err := json.Marshal(pod)
		if err != nil {
			return err
		}
		// Written aside, since half a manifest is none.
		part, whole := filepath.Join(a.dir(), pod.Name), filepath.Join(a.dir(), "manifests", pod.Name+".json")
		if err := errors.Join(os.WriteFile(part, text, 0o644), os.Rename(part, whole)); err != nil {
			return err
		}
	}
	return until(ctx, "static pods run", func() error {
		made, err := os.ReadDir(dir)
		if err == nil && len(made) < b.many {
			err = fmt.Errorf("%d of %d do", len(made), b.many)
		}
		return err
	})
}
