package owned

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Late is when a cache that is behind is looked at again. What it has not heard of yet leads to a look by itself, but
// for what was made and removed while the watch was broken.
const Late = 5 * time.Second

// Writes is what was written for each owner and a cache may not have heard of yet. Who decides by such a cache does the
// same again: makes too many pods, or ends too many.
//
// The store's versions say it: each write has one, and a cache knows how far it is. The answer to a deletion has none,
// so that an object is remembered that was to go.
type Writes struct {
	cache Cache
	mu    sync.Mutex
	of    map[cache.ObjectName]*written
}

type written struct {
	version string
	gone    map[types.UID]string // where the cache has them
}

// NewWrites makes the memory of what one cache is to hear.
func NewWrites(c Cache) *Writes {
	return &Writes{cache: c, of: map[cache.ObjectName]*written{}}
}

func (w *Writes) get(owner cache.ObjectName) *written {
	one := w.of[owner]
	if one == nil {
		one = &written{gone: map[types.UID]string{}}
		w.of[owner] = one
	}
	return one
}

// Wrote remembers an object as the API has it since a write.
func (w *Writes) Wrote(owner cache.ObjectName, o metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if reached(w.cache, o.GetResourceVersion()) {
		return
	}
	one := w.get(owner)
	if one.version == "" || newer(o.GetResourceVersion(), one.version) {
		one.version = o.GetResourceVersion()
	}
}

// Ended remembers an object that was to go.
func (w *Writes) Ended(owner cache.ObjectName, o metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.get(owner).gone[o.GetUID()] = cache.MetaObjectToName(o).String()
}

// Behind says whether the cache has not heard yet of all that was written for an owner.
func (w *Writes) Behind(owner cache.ObjectName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.of[owner]
	if one == nil {
		return false
	}
	if one.version != "" && reached(w.cache, one.version) {
		one.version = ""
	}
	for uid, key := range one.gone {
		if !lives(w.cache, key, uid) {
			delete(one.gone, uid)
		}
	}
	if one.version == "" && len(one.gone) == 0 {
		delete(w.of, owner)
		return false
	}
	return true
}

// Forget is called when an owner is gone.
func (w *Writes) Forget(owner cache.ObjectName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, owner)
}

func lives(c Cache, key string, uid types.UID) bool {
	o, has, err := c.GetByKey(key)
	if err != nil || !has {
		return false
	}
	m, err := meta.Accessor(o)
	return err == nil && m.GetUID() == uid && m.GetDeletionTimestamp() == nil
}

func newer(a, b string) bool {
	return len(a) > len(b) || len(a) == len(b) && a > b
}
