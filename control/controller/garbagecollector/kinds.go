package garbagecollector

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// resource is where objects of a kind are.
type resource struct {
	resource   schema.GroupVersionResource
	namespaced bool
	watched    bool // they can be deleted, and watched
}

// kinds are those that are served.
type kinds struct {
	mu  sync.RWMutex
	all map[schema.GroupKind]resource
}

func (k *kinds) get(of schema.GroupKind) (resource, bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	r, is := k.all[of]
	return r, is
}

func (k *kinds) watched() map[schema.GroupKind]resource {
	k.mu.RLock()
	defer k.mu.RUnlock()
	all := maps.Clone(k.all)
	maps.DeleteFunc(all, func(_ schema.GroupKind, r resource) bool { return !r.watched })
	return all
}

// learn asks what is served, and returns the kinds that were not before. Of groups that do not answer is served what
// was: their server is away, and their objects are not gone.
func (k *kinds) learn(server discovery.ServerResourcesInterface) (map[schema.GroupKind]bool, error) {
	lists, err := server.ServerPreferredResources()
	all, unread := readKinds(lists)
	silent := map[schema.GroupVersion]error{}
	var failed *discovery.ErrGroupDiscoveryFailed
	switch {
	case errors.As(err, &failed):
		silent = failed.Groups
	case err != nil:
		return nil, fmt.Errorf("learn what is served: %w", err)
	case len(all) == 0:
		return nil, errors.New("learn what is served: the answer is empty")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for of, r := range k.all {
		if _, is := all[of]; is {
			continue
		}
		// Which of its versions is missing does not matter: the whole group is not known.
		if slices.ContainsFunc(slices.Collect(maps.Keys(silent)), func(g schema.GroupVersion) bool { return g.Group == of.Group }) {
			all[of] = r
		}
	}
	fresh := map[schema.GroupKind]bool{}
	for of := range all {
		if _, was := k.all[of]; !was {
			fresh[of] = true
		}
	}
	k.all = all
	return fresh, errors.Join(err, unread)
}

func readKinds(lists []*metav1.APIResourceList) (map[schema.GroupKind]resource, error) {
	all := map[schema.GroupKind]resource{}
	var failed error
	for _, l := range lists {
		gv, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("read what is served: %w", err))
			continue
		}
		for _, r := range l.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "get") {
				continue
			}
			may := !slices.ContainsFunc([]string{"delete", "list", "watch"}, func(verb string) bool { return !slices.Contains(r.Verbs, verb) })
			all[schema.GroupKind{Group: gv.Group, Kind: r.Kind}] = resource{
				// Events come in any number, and go by themselves.
				gv.WithResource(r.Name), r.Namespaced, may && r.Kind != "Event",
			}
		}
	}
	return all, failed
}

// known says whether it was ever answered.
func (k *kinds) known() bool {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.all != nil
}
