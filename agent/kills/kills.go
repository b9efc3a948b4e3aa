// Package kills keeps what the kernel's log tells of containers that were killed for want of memory, and makes events of it.
package kills

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/cgroups"
	"github.com/berth-node/berth/cgroups/kube"
)

const (
	// File has the last kill of each container for want of memory, in the root directory.
	File = "kills.json"
	// maxKills bounds it: pods come and go, and their kills are kept until others need the place.
	maxKills    = 1000
	maxPodKills = 20
	reason      = "OOMKilling" // as the node problem detector has it
	logAgain    = 5 * time.Second
	killDelay   = 100 * time.Millisecond // gathers the kills of a group that dies as a whole
)

// kills keeps the last kill of each container: the kernel's log, where they are told with their numbers, is overwritten in time, and is
// the whole machine's. One goroutine has all of it.
type kills struct {
	cfg  Config
	kept []cgroups.OOMKill // oldest first
	told func(cgroups.OOMKill)
}

// Events is where kills are told.
type Events interface {
	Event(pod *corev1.Pod, typ, reason, format string, args ...any)
}

// Config is what [Keep] works with. All of it is required.
type Config struct {
	RootDir string
	Tree    *kube.Tree
	Pods    func() []*corev1.Pod
	Events  Events
	Log     *slog.Logger
}

// Keep runs until ctx ends. Where the log cannot be read, containers' statuses tell of kills as the runtime does, without numbers.
func Keep(ctx context.Context, c Config) {
	k := &kills{cfg: c}
	k.told = k.tell
	file := filepath.Join(c.RootDir, File)
	var err error
	if k.kept, err = cgroups.LoadKills(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Log.Warn("the kills of containers that were kept are lost", "error", err)
	}
	said := false
	for ctx.Err() == nil {
		if err := k.follow(ctx, cgroups.KernelLogPath, file); err != nil && ctx.Err() == nil && !said {
			said = true
			c.Log.Info("kills for want of memory are told without what the process had", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(logAgain):
		}
	}
}

// follow reads the log from its beginning, since some of it may have been written while no agent ran.
func (k *kills) follow(ctx context.Context, log, file string) error {
	l, err := cgroups.OpenKernelLog(log, false)
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found, ended := make(chan cgroups.OOMKill), make(chan error, 1)
	go func() {
		ended <- l.Follow(ctx, func(one cgroups.OOMKill) {
			select {
			case found <- one:
			case <-ctx.Done():
			}
		})
	}()
	var save <-chan time.Time
	for {
		select {
		case one := <-found:
			if k.keep(one) && save == nil {
				save = time.After(killDelay)
			}
		case <-save:
			save = nil
			k.save(file)
		case err := <-ended:
			if save != nil {
				k.save(file)
			}
			return err
		}
	}
}

func (k *kills) save(file string) {
	if err := cgroups.SaveKills(file, k.kept); err != nil {
		k.cfg.Log.Warn("kills of containers are not kept", "error", err)
	}
}

// keep takes note of a kill in one of our pods, unless it is known from an earlier look, and tells of it.
func (k *kills) keep(one cgroups.OOMKill) bool {
	top := k.cfg.Tree.ClassPath(corev1.PodQOSGuaranteed)
	if !strings.HasPrefix(one.Group, top+"/") {
		return false
	}
	for _, o := range k.kept {
		// The time is by the clock, which may have been set since.
		if o.Pid == one.Pid && o.Group == one.Group && o.Comm == one.Comm && o.Anon == one.Anon && o.Time.Sub(one.Time).Abs() < time.Minute {
			return false
		}
	}
	uid, _, _ := k.cfg.Tree.Owner(one.Group)
	before := 0
	for i, o := range slices.Backward(k.kept) {
		of, _, _ := k.cfg.Tree.Owner(o.Group)
		if of == uid {
			before++
		}
		if o.Group == one.Group || of == uid && before >= maxPodKills { // one that is restarted again and again has a group each time
			k.kept = slices.Delete(k.kept, i, i+1)
		}
	}
	k.kept = append(k.kept, one)
	k.kept = slices.Clone(k.kept[max(0, len(k.kept)-maxKills):])
	k.told(one)
	return true
}

// tell makes an event of the pod.
func (k *kills) tell(one cgroups.OOMKill) {
	uid, id, ok := k.cfg.Tree.Owner(one.Group)
	if !ok {
		return
	}
	var pod *corev1.Pod
	for _, p := range k.cfg.Pods() {
		if p.UID == uid {
			pod = p
		}
	}
	if pod == nil {
		return
	}
	container := "a container that is gone"
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			for _, full := range []string{c.ContainerID, lastID(c)} {
				if _, cid, ok := strings.Cut(full, "://"); ok && cid == id {
					container = "container " + c.Name
				}
			}
		}
	}
	one.Comm = printable(one.Comm)
	k.cfg.Events.Event(pod, corev1.EventTypeWarning, reason, "%s: %s", container, one.Describe(k.limitName(uid, &one)))
}

func lastID(c corev1.ContainerStatus) string {
	if t := c.LastTerminationState.Terminated; t != nil {
		return t.ContainerID
	}
	return ""
}

// limitName names the group whose limit was reached.
func (k *kills) limitName(uid types.UID, one *cgroups.OOMKill) string {
	for _, q := range []corev1.PodQOSClass{corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		if one.LimitGroup == k.cfg.Tree.ClassPath(q) {
			return "the class of " + string(q) + " pods"
		}
	}
	of, id, ok := k.cfg.Tree.Owner(one.LimitGroup)
	switch {
	case one.LimitGroup == k.cfg.Tree.ClassPath(corev1.PodQOSGuaranteed):
		return "the group of all pods"
	case ok && of == uid && id == "":
		return "the pod"
	case ok && of == uid:
		return "the container itself"
	}
	return "group " + path.Clean(one.LimitGroup)
}

// printable leaves out what a process is called that would steer a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
