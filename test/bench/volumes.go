package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

const volumeClass = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: bench}
provisioner: local.csi.berth.node
parameters: {type: directory}
`

const volumeClaim = `---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec: {storageClassName: bench, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
`

// volumeRounds is how often pods are started without and with volumes, by turns.
const volumeRounds = 3

// volumesGroup has the agent and its pods.
const volumesGroup = "/berth-volumes"

// The pods of a round have one of these beside the directory of the host that all have.
const (
	noVolume    = "without volumes"
	plainVolume = "with an emptyDir each"
	csiVolume   = "with a CSI volume each"
)

// volumes starts many pods at once, without a volume of a CSI driver and with one each that is made already. Only berth
// has a driver.
func (b *bench) volumes(ctx context.Context, p peer) (err error) {
	old, ok := p.(*berth)
	if !ok {
		return nil
	}
	// A node of its own, whose volumes go at once with their claims.
	if err := old.Down(); err != nil {
		return err
	}
	node := newBerth(b)
	node.more, node.group = []string{"--volume-delete-grace=0s"}, volumesGroup+"/node"
	defer removeGroups(volumesGroup)
	defer func() { err = errors.Join(err, old.Up(ctx)) }()
	if err := b.inGroup(volumesGroup+"/daemon", func() error { return node.Up(ctx) }); err != nil {
		return errors.Join(err, node.Down())
	}
	defer func() { err = errors.Join(err, node.Down()) }()
	var claims strings.Builder
	claims.WriteString(volumeClass)
	for i := range b.many {
		fmt.Fprintf(&claims, volumeClaim, fmt.Sprintf("bench-%d", i))
	}
	file := node.dir + "/manifests/claims.yaml"
	begin := time.Now()
	if err := os.WriteFile(file, []byte(claims.String()), 0o644); err != nil {
		return err
	}
	if err := node.volumesReady(ctx, b.many); err != nil {
		return err
	}
	b.report.record(p, fmt.Sprintf("%d claims: last volume is made", b.many), "s", time.Since(begin).Seconds())
	took, agent, all := map[string][]time.Duration{}, map[string][]time.Duration{}, map[string][]time.Duration{}
	for round := range volumeRounds {
		for i, with := range []string{noVolume, plainVolume, csiVolume} {
			t, err := b.startAll(ctx, node, fmt.Sprintf("round-%d-%d", round, i), with)
			if err != nil {
				return err
			}
			took[with] = append(took[with], t.last)
			agent[with], all[with] = append(agent[with], t.agent/time.Duration(b.many)), append(all[with], t.all/time.Duration(b.many))
		}
	}
	for _, with := range []string{noVolume, plainVolume, csiVolume} {
		b.report.record(p, fmt.Sprintf("%d pods at once %s, median", b.many, with), "ms", median(took[with]))
		b.report.record(p, "CPU time of a pod "+with+", until the last runs", "ms", median(all[with]))
		b.report.record(p, "of which the agent's, "+with, "ms", median(agent[with]))
	}
	later := func(of map[string][]time.Duration) float64 {
		return 100 * (median(of[csiVolume])/median(of[noVolume]) - 1)
	}
	b.report.record(p, fmt.Sprintf("%d pods at once: with volumes later by", b.many), "%", later(took))
	b.report.record(p, "with volumes more CPU time by", "%", later(all))
	if err := os.Remove(file); err != nil {
		return err
	}
	return node.volumesReady(ctx, 0)
}

// started is how long it has taken until the last of many pods ran, and the CPU time of the agent and of all till then.
type started struct{ last, agent, all time.Duration }

// startAll starts many pods, which are removed again.
func (b *bench) startAll(ctx context.Context, node *berth, name, with string) (out started, err error) {
	m, err := b.markers()
	if err != nil {
		return out, err
	}
	defer m.close()
	var pods []pod
	claim := map[string]string{}
	for i := range b.many {
		x := pod{name: fmt.Sprintf("%s-%d", name, i), marker: m.dir}
		pods, claim[x.name] = append(pods, x), fmt.Sprintf("bench-%d", i)
	}
	begin, agent, all := time.Now(), processCPU(node.cmd.Process.Pid), groupUsage(volumesGroup)
	applied := make(chan error, 1)
	go func() {
		applied <- node.apply(pods, func(x pod) string {
			text, source := manifest(x, x.command(), ""), ""
			switch with {
			case noVolume:
				return text
			case plainVolume:
				source = "emptyDir: {}"
			case csiVolume:
				source = "persistentVolumeClaim: {claimName: " + claim[x.name] + "}"
			}
			text = strings.Replace(text, "mountPath: /b}]", "mountPath: /b}, {name: v, mountPath: /v}]", 1)
			return strings.Replace(text, "volumes: [", "volumes: [{name: v, "+source+"}, ", 1)
		})
	}()
	if err := m.wait(ctx, len(pods), applied); err != nil {
		return out, err
	}
	out = started{time.Since(begin), processCPU(node.cmd.Process.Pid) - agent, groupUsage(volumesGroup) - all}
	if err := node.Remove(ctx, pods); err != nil {
		return out, err
	}
	if err := gone(ctx, node, 5*time.Millisecond); err != nil {
		return out, err
	}
	return out, node.quiet(ctx)
}

// volumesReady waits until as many volumes are ready, and no others are there.
func (p *berth) volumesReady(ctx context.Context, want int) error {
	return p.volumesWhen(ctx, func(ready, all, _ int) bool { return ready == want && all == want })
}

// quiet waits until no pod has a volume any more.
func (p *berth) quiet(ctx context.Context) error {
	return p.volumesWhen(ctx, func(_, _, mounts int) bool { return mounts == 0 })
}

func (p *berth) volumesWhen(ctx context.Context, ok func(ready, all, mounts int) bool) error {
	deadline := time.Now().Add(3 * time.Minute)
	for {
		var s struct {
			Claims []struct{ Status string }
			Mounts []struct{}
		}
		out, err := exec.CommandContext(ctx, p.b.bin+"/berth", "--run-dir="+p.dir+"/run", "volumes", "-o", "json").Output()
		if err == nil {
			err = json.Unmarshal(out, &s)
		}
		ready := 0
		for _, c := range s.Claims {
			if c.Status == "Ready" {
				ready++
			}
		}
		switch {
		case err == nil && ok(ready, len(s.Claims), len(s.Mounts)):
			return nil
		case time.Now().After(deadline):
			return fmt.Errorf("%d of %d volumes are ready, and pods have %d: %w", ready, len(s.Claims), len(s.Mounts), errors.Join(err, context.DeadlineExceeded))
		}
		time.Sleep(20 * time.Millisecond)
	}
}
