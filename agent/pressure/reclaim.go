package pressure

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod"
	"github.com/berth-node/berth/eviction/collect"
	"github.com/berth-node/berth/eviction/signal"
)

// Dead are the containers that are kept for their logs alone.
type Dead interface {
	// WeighDead are all, with what each has, the oldest first.
	WeighDead(ctx context.Context) ([]pod.DeadContainer, error)
	// RemoveDead removes some and waits for it. It returns those that are gone.
	RemoveDead(ctx context.Context, list []collect.Container) []collect.Container
}

// Images are those that no pod needs.
type Images interface {
	// Reclaim removes some until so much of their file system is free as is needed, and says how much that was.
	Reclaim(ctx context.Context, bytes, inodes int64) (freed, freedInodes int64, err error)
}

// deadPatience is how long dead containers may take to go: a pod that is just being started keeps its own meanwhile.
const deadPatience = 10 * time.Second

// weighPatience is how long the files of dead containers may be counted, of half the time that there is.
const weighPatience = 10 * time.Second

// How long what dead containers had may take to be free, and how often that is looked at.
const roomPatience, roomLook = 2 * time.Second, 20 * time.Millisecond

// Reclaim implements [eviction.Node]: dead containers go, the oldest first, then what others that have ended have
// written, and then images, the least recently used first, as long as there is not enough. What is not on the file
// system that is full stays.
func (n *Node) Reclaim(ctx context.Context, of signal.Signal, need int64) (int64, error) {
	if of.Condition() != corev1.NodeDiskPressure {
		return 0, nil
	}
	where := n.dirOf(of)
	freed, err := n.reclaimDead(ctx, of, where, need)
	if freed >= need || !sameDisk(where, n.cfg.ImageDir) {
		return freed, err
	}
	more, shedErr := shed(ctx, &n.cfg, of, where, need-freed)
	if freed += more; freed >= need {
		return freed, errors.Join(err, shedErr)
	}
	more, imagesErr := n.reclaimImages(ctx, of, need-freed)
	return freed + more, errors.Join(err, shedErr, imagesErr)
}

// shed removes the files of containers that have ended and stay to be told of, as those of a pod that is over.
func shed(ctx context.Context, c *Config, of signal.Signal, where string, need int64) (int64, error) {
	if c.Shed == nil {
		return 0, nil
	}
	w := places{inodes: of.Resource() == signal.ResourceInodes}
	before, known := w.room(where)
	freed, err := w.ask(need, func(bytes, inodes int64) (int64, int64, error) { return c.Shed(ctx, bytes, inodes) })
	if err != nil {
		err = fmt.Errorf("remove files of containers that have ended: %w", err)
	}
	if known && freed > 0 {
		w.await(ctx, where, before+freed/10*9)
	}
	return freed, err
}

// ask asks for so many bytes, or inodes, and says how many of them that were.
func (w places) ask(need int64, reclaim func(bytes, inodes int64) (int64, int64, error)) (int64, error) {
	if w.inodes {
		_, freed, err := reclaim(0, need)
		return freed, err
	}
	freed, _, err := reclaim(need, 0)
	return freed, err
}

// dirOf is a directory on the file system that a signal is of.
func (n *Node) dirOf(of signal.Signal) string {
	if of == signal.NodeFsAvailable || of == signal.NodeFsInodesFree {
		return n.cfg.RootDir
	}
	return n.cfg.ImageDir // containers have their layers there too
}

// reclaimDead removes dead containers, and says what they had there.
func (n *Node) reclaimDead(ctx context.Context, of signal.Signal, where string, need int64) (freed int64, err error) {
	weighing := weighPatience
	if deadline, ok := ctx.Deadline(); ok {
		weighing = min(weighing, time.Until(deadline)/2)
	}
	counting, cancel := context.WithTimeout(ctx, weighing)
	dead, err := n.cfg.Dead.WeighDead(counting)
	cancel()
	if err != nil {
		return 0, fmt.Errorf("find dead containers: %w", err)
	}
	w := places{inodes: of.Resource() == signal.ResourceInodes}
	has := map[string]int64{}
	var list []collect.Container
	for i, sum := 0, int64(0); i < len(dead) && sum < need; i++ {
		c := &dead[i]
		amount := int64(0)
		if sameDisk(where, c.LayerDir) {
			amount += w.amount(c.Layer)
		}
		if sameDisk(where, c.LogsDir) {
			amount += w.amount(c.Logs)
		}
		if amount > 0 {
			has[c.ID], sum = amount, sum+amount
			list = append(list, c.Container)
		}
	}
	if len(list) == 0 {
		return 0, nil
	}
	ctx, cancel = context.WithTimeout(ctx, deadPatience)
	defer cancel()
	before, known := w.room(where)
	gone := n.cfg.Dead.RemoveDead(ctx, list)
	for _, c := range gone {
		freed += has[c.ID]
	}
	if known {
		w.await(ctx, where, before+freed/10*9)
	}
	if len(gone) < len(list) {
		err = fmt.Errorf("%d dead containers are not removed within %s", len(list)-len(gone), deadPatience)
	}
	return freed, err
}

// room is how much a file system has left; false when it does not tell.
func (w places) room(dir string) (int64, bool) {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0, false
	}
	if w.inodes {
		return int64(st.Ffree), true
	}
	return int64(st.Bavail) * st.Bsize, true
}

// await waits until a file system has so much left: runtimes delete in the background what is removed, and nothing
// tells when that is done. Others write meanwhile, so that it may never have.
func (w places) await(ctx context.Context, dir string, want int64) {
	ctx, cancel := context.WithTimeout(ctx, roomPatience)
	defer cancel()
	look := time.NewTicker(roomLook)
	defer look.Stop()
	for {
		if has, known := w.room(dir); !known || has >= want {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
	}
}

func (n *Node) reclaimImages(ctx context.Context, of signal.Signal, need int64) (int64, error) {
	w := places{inodes: of.Resource() == signal.ResourceInodes}
	freed, err := w.ask(need, func(bytes, inodes int64) (int64, int64, error) {
		return n.cfg.Images.Reclaim(ctx, bytes, inodes)
	})
	if err != nil {
		err = fmt.Errorf("remove images: %w", err)
	}
	return freed, err
}

// sameDisk says whether two directories are on one file system. One that is not there is on none.
func sameDisk(a, b string) bool {
	var x, y unix.Stat_t
	return a != "" && b != "" && unix.Stat(a, &x) == nil && unix.Stat(b, &y) == nil && x.Dev == y.Dev
}
