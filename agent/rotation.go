package agent

import (
	"context"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/pod/spec"
	"github.com/berth-node/berth/agent/rotate"
)

// rotateLogs rotates the logs of a runtime that leaves that to who uses it. The embedded one's keepers do it as they
// write.
func (a *Agent) rotateLogs(ctx context.Context) {
	if a.cfg.Endpoint == "" || a.cfg.LogMaxSize.Value() == 0 {
		return
	}
	r := rotate.New(rotate.Config{
		Runtime: a.cfg.Runtime, MaxSize: a.cfg.LogMaxSize.Value(), MaxFiles: a.cfg.LogMaxFiles, Period: a.cfg.LogInterval, Log: a.log,
	})
	var wait sync.WaitGroup
	defer wait.Wait()
	wait.Go(func() {
		// It ends with ctx.
		_ = a.pods.Watch(ctx, func(t watch.EventType, p *corev1.Pod) error {
			if t == watch.Deleted {
				return r.Set(ctx, string(p.UID), nil)
			}
			return r.Set(ctx, string(p.UID), runningLogs(a.cfg.LogDir, p))
		})
	})
	_ = r.Run(ctx)
}

// runningLogs are the logs that are written.
func runningLogs(logDir string, p *corev1.Pod) []rotate.Log {
	var out []rotate.Log
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			s := &list[i]
			if _, id, ok := strings.Cut(s.ContainerID, "://"); ok && s.State.Running != nil {
				path := filepath.Join(spec.LogDirectory(logDir, p), spec.LogPath(s.Name, uint32(s.RestartCount)))
				out = append(out, rotate.Log{Container: id, Path: path})
			}
		}
	}
	return out
}
