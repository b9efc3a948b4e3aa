package collect

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var now = time.Unix(1_000_000, 0)

// dead are containers that have ended so many minutes ago, by "pod/name-minutes".
func dead(ids ...string) []Container {
	var out []Container
	for _, id := range ids {
		var minutes int
		pod, rest, _ := strings.Cut(id, "/")
		name, age, _ := strings.Cut(rest, "-")
		if _, err := fmt.Sscan(age, &minutes); err != nil {
			panic(err)
		}
		out = append(out, Container{ID: id, Pod: types.UID(pod), Name: name, Ended: now.Add(-time.Duration(minutes) * time.Minute)})
	}
	return out
}

func ids(list []Container) string {
	var out []string
	for _, c := range list {
		out = append(out, c.ID)
	}
	return strings.Join(out, " ")
}

// wanted are all pods but the one that is gone.
func wanted(uid types.UID) bool { return uid != "gone" }

func TestContainers(t *testing.T) {
	for _, tt := range []struct {
		name string
		p    Policy
		dead []Container
		want string
	}{
		{"kubelet's", Default(), dead("a/x-1", "a/x-3", "a/x-2", "a/y-9", "gone/x-1"), "a/x-3 a/x-2 gone/x-1"},
		{"young", Policy{MinAge: 2 * time.Minute, MaxTotal: -1}, dead("a/x-1", "a/x-2", "gone/x-1", "gone/x-3"), "gone/x-3 a/x-2"},
		{"any number", Policy{MaxPerContainer: -1, MaxTotal: -1}, dead("a/x-1", "a/x-3", "gone/x-1"), "gone/x-1"},
		{"none", Policy{}, dead("a/x-1", "b/x-2"), "b/x-2 a/x-1"},
		{"of all", Policy{MaxPerContainer: 3, MaxTotal: 4}, dead("a/x-1", "a/x-2", "a/x-3", "b/x-10", "b/x-11", "b/x-12"), "b/x-12 a/x-3"},
		{"one of each is too many", Policy{MaxPerContainer: -1, MaxTotal: 2}, dead("a/x-1", "a/x-9", "b/x-2", "c/x-3", "d/x-4"), "a/x-9 d/x-4 c/x-3"},
		{"enough room", Policy{MaxPerContainer: 2, MaxTotal: 2}, dead("a/x-1", "b/x-2"), ""},
		{"nothing", Policy{MaxTotal: 0}, nil, ""},
		{"only of pods that are gone", Policy{MaxPerContainer: -1, MaxTotal: 0}, dead("gone/x-1"), "gone/x-1"},
	} {
		if got := ids(tt.p.Containers(tt.dead, wanted, now)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// TestContainersKeeps: whatever is dead, no more are kept than may be, none goes twice, and none that is too young.
func TestContainersKeeps(t *testing.T) {
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 3))
		p := Policy{MinAge: time.Duration(random.IntN(5)) * time.Minute, MaxPerContainer: random.IntN(5) - 1, MaxTotal: random.IntN(12) - 1}
		var list []Container
		for i := range random.IntN(30) {
			c := dead(fmt.Sprintf("%c/%c-%d", 'a'+random.IntN(4), 'x'+random.IntN(2), random.IntN(20)))[0]
			c.ID = fmt.Sprint(i)
			list = append(list, c)
		}
		gone := map[string]bool{}
		for _, c := range p.Containers(list, wanted, now) {
			if gone[c.ID] || now.Sub(c.Ended) < p.MinAge {
				t.Fatalf("seed %d: %+v", seed, c)
			}
			gone[c.ID] = true
		}
		kept, each := 0, map[string]int{}
		newest := map[string]time.Time{}
		for _, c := range list {
			if key := string(c.Pod) + c.Name; gone[c.ID] && c.Ended.After(newest[key]) {
				newest[key] = c.Ended
			}
		}
		for _, c := range list {
			key := string(c.Pod) + c.Name
			if gone[c.ID] || now.Sub(c.Ended) < p.MinAge {
				continue
			}
			kept++
			each[key]++
			if c.Ended.Before(newest[key]) {
				t.Fatalf("seed %d: %+v is kept, and a later one is not", seed, c)
			}
			if p.MaxPerContainer >= 0 && each[key] > p.MaxPerContainer {
				t.Fatalf("seed %d: %d of %s are kept by %+v", seed, each[key], key, p)
			}
		}
		if p.MaxTotal >= 0 && kept > p.MaxTotal {
			t.Fatalf("seed %d: %d are kept by %+v", seed, kept, p)
		}
	}
}

func TestNext(t *testing.T) {
	p := Policy{MinAge: 5 * time.Minute}
	if got := p.Next(dead("a/x-1", "a/x-4", "a/x-5", "a/x-9"), now); !got.Equal(now.Add(time.Minute)) {
		t.Error(got)
	}
	if got := p.Next(dead("a/x-5"), now); !got.IsZero() {
		t.Error(got)
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Policy{MaxTotal: -2}).Validate(); err == nil || !strings.Contains(err.Error(), "--maximum-dead-containers") {
		t.Error(err)
	}
	if err := (Policy{MinAge: -1}).Validate(); err == nil || !strings.Contains(err.Error(), "--minimum-container-ttl-duration") {
		t.Error(err)
	}
}
