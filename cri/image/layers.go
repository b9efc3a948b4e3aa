package image

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/berth-node/berth/cri/image/layer"
	"github.com/berth-node/berth/cri/snapshot"
	"github.com/berth-node/berth/cri/store"
)

// layers are the snapshots that images stand on, by chain ID, with what each takes.
type layers struct {
	snaps   snapshot.Snapshotter
	records *store.Table[layerRecord]

	mu   sync.Mutex
	news chan struct{} // closed when there is a new layer
}

// layerRecord keeps what a layer takes, so that nobody has to walk it.
type layerRecord struct {
	Bytes, Inodes uint64
	Made          time.Time
}

// carry says whether what stands on a layer, "" for nothing, has all that it needs.
func (l *layers) carry(top string) bool { return top == "" || l.snaps.Exists(top) }

// dirs are the directories of layers that are there.
func (l *layers) dirs(chain []string) []string {
	if len(chain) == 0 {
		return nil
	}
	all := map[string]string{}
	for _, i := range l.snaps.List() {
		all[i.Key] = i.Dir
	}
	var dirs []string
	for _, c := range chain {
		dirs = append(dirs, all[c])
	}
	return dirs
}

// await waits until somebody has made a layer.
func (l *layers) await(ctx context.Context, chain string) error {
	for {
		l.mu.Lock()
		news := l.news
		l.mu.Unlock()
		if l.carry(chain) {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// made records what a layer takes and tells those who wait for it.
func (l *layers) made(ctx context.Context, chain string, u layer.Usage) error {
	l.mu.Lock()
	close(l.news)
	l.news = make(chan struct{})
	l.mu.Unlock()
	if !l.snaps.Independent() {
		all, err := l.snaps.Usage(ctx, chain) // each layer holds a copy of what is below
		if err != nil {
			return err
		}
		u = layer.Usage(all)
	}
	return l.records.Put(chain, layerRecord{Bytes: u.Bytes, Inodes: u.Inodes, Made: time.Now()})
}

// size is how many bytes layers take.
func (l *layers) size(chain []string) (n int64) {
	for _, c := range chain {
		if r, err := l.records.Get(c); err == nil {
			n += int64(r.Bytes)
		}
	}
	return n
}

// drop removes layers, given the lowest first, that are not kept. One that a container stands on stays, with those
// below it, until collect finds it free.
func (l *layers) drop(ctx context.Context, chain []string, kept map[string]struct{}) error {
	for _, c := range slices.Backward(chain) {
		if _, ok := kept[layerKey(c)]; ok {
			continue
		}
		err := l.snaps.Remove(ctx, c)
		if errors.Is(err, snapshot.ErrInUse) {
			continue
		}
		if err != nil {
			return err
		}
		if err := l.records.Delete(c); err != nil {
			return err
		}
	}
	return nil
}

// collect removes layers that are neither kept nor younger than old, nor below such.
func (l *layers) collect(ctx context.Context, kept map[string]struct{}, old time.Time) error {
	parents := map[string]string{}
	for _, i := range l.snaps.List() {
		if i.Kind == snapshot.KindLayer {
			parents[i.Key] = i.Parent
		}
	}
	for key := range parents {
		if r, err := l.records.Get(key); err == nil && r.Made.After(old) {
			for k := key; k != ""; k = parents[k] {
				kept[layerKey(k)] = struct{}{}
			}
		}
	}
	var errs []error
	for _, key := range upwards(parents) {
		errs = append(errs, l.drop(ctx, []string{key}, kept))
	}
	for key := range l.records.All() {
		if _, err := l.snaps.Usage(ctx, key); errors.Is(err, snapshot.ErrNotFound) {
			errs = append(errs, l.records.Delete(key))
		}
	}
	return errors.Join(errs...)
}

// recount finds out what layers take whose record of that was lost; they were made at the latest then.
func (l *layers) recount(ctx context.Context, chain []string, made time.Time) error {
	for _, c := range chain {
		if _, err := l.records.Get(c); err == nil {
			continue
		}
		u, err := l.snaps.Usage(ctx, c)
		if errors.Is(err, snapshot.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if err := l.records.Note(c, layerRecord{Bytes: u.Bytes, Inodes: u.Inodes, Made: made}); err != nil {
			return err
		}
	}
	return nil
}

// upwards orders layers so that what stands on another comes before it.
func upwards(parents map[string]string) []string {
	depth := func(k string) (n int) {
		for ; k != "" && n <= len(parents); k = parents[k] {
			n++
		}
		return n
	}
	var keys []string
	depths := map[string]int{}
	for k := range parents {
		keys = append(keys, k)
		depths[k] = depth(k)
	}
	slices.SortFunc(keys, func(a, b string) int { return depths[b] - depths[a] })
	return keys
}
