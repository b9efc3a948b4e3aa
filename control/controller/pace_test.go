package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/tools/cache"
)

// TestPaced has a pod change again and again that all services of a namespace select: so many are looked at at once,
// then so many a second, each once for all changes before, and after the last change all of them. One of another
// namespace is looked at at once, and so are those of a pod that few select.
func TestPaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many, flips = 3000, 200
		ctx, cancel := context.WithCancel(t.Context())
		var looks, flip atomic.Int64
		var last sync.Map
		l := NewLoop(slog.New(slog.DiscardHandler), 1, func(_ context.Context, key cache.ObjectName) (time.Duration, error) {
			looks.Add(1)
			last.Store(key, flip.Load())
			return 0, nil
		})
		of := func(namespace string, n int) []cache.ObjectName {
			var all []cache.ObjectName
			for i := range n {
				all = append(all, cache.ObjectName{Namespace: namespace, Name: fmt.Sprint(i)})
			}
			return all
		}
		change := l.handler(watch[cache.ObjectName]{paced: true, changed: func(_, after any) []cache.ObjectName {
			all, _ := after.([]cache.ObjectName)
			return all
		}})
		go l.Run(ctx)
		storm, began := of("storm", many), time.Now()
		for i := range int64(flips) {
			flip.Store(i)
			change.OnUpdate(nil, storm)
			synctest.Wait()
			time.Sleep(paceEvery)
		}
		took := int64(time.Since(began) / paceEvery)
		if got, most := looks.Load(), paceBurst+took+1+flips*atOnce; got > most || got < paceBurst {
			t.Errorf("of %d changes of %d services %d are looked at, and %d may be", flips, many, got, most)
		}
		synctest.Wait()
		before := looks.Load()
		change.OnUpdate(nil, of("other", atOnce+5))
		change.OnUpdate(nil, storm[many-atOnce:])
		synctest.Wait()
		if got := looks.Load() - before; got != 2*atOnce+5 {
			t.Errorf("of %d that do not wait %d are looked at", 2*atOnce+5, got)
		}
		flip.Add(1)
		change.OnUpdate(nil, storm)
		time.Sleep(2 * many * paceEvery)
		synctest.Wait()
		for _, key := range storm {
			// What waited since is looked at after the last change.
			if at, _ := last.Load(key); at != flip.Load() {
				t.Fatalf("%s is as it was at change %v of %d", key, at, flip.Load())
			}
		}
		change.OnUpdate(nil, of("last", atOnce+1))
		synctest.Wait()
		if len(l.pace.waits) > 0 || len(l.pace.next) != 1 {
			t.Errorf("there are %d that wait, and %d namespaces", len(l.pace.waits), len(l.pace.next))
		}
		cancel()
		synctest.Wait()
	})
}
