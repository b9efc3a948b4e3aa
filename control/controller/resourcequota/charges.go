package resourcequota

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// settles is how long an object may take from admission, which has it counted first, until it is seen here. Whoever
// counts meanwhile finds one less than there will be, and may not say so: another one would be let in.
const settles = 2 * time.Second

// charges knows since when each quota says what it says.
type charges struct {
	mu    sync.Mutex
	since map[cache.ObjectName]said
}

type said struct {
	version string
	at      time.Time
}

// unsettled is how long what a quota says is used may be of objects that are not seen yet.
func (c *charges) unsettled(q *corev1.ResourceQuota, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := cache.MetaObjectToName(q)
	if c.since[key].version != q.ResourceVersion {
		c.since[key] = said{q.ResourceVersion, now}
	}
	return max(0, settles-now.Sub(c.since[key].at))
}

// counted says that a version of a quota is of this controller: admission has not counted anything by it.
func (c *charges) counted(q *corev1.ResourceQuota) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := cache.MetaObjectToName(q)
	c.since[key] = said{q.ResourceVersion, c.since[key].at}
}

func (c *charges) forget(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.since, key)
}
