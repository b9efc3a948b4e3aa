package rank

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction/signal"
)

// names writes pods one after the other.
func names(pods []Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return strings.Join(out, " ")
}

// pod returns one with figures.
func pod(name string, priority int32, usage, request int64) Pod {
	return Pod{UID: types.UID(name), Namespace: "default", Name: name, Priority: priority, Known: true, Usage: usage, Request: request}
}

func TestOrder(t *testing.T) {
	unknown := pod("unknown", 9, 0, 0)
	unknown.Known = false
	kept := pod("kept", -1, 1000, 0)
	kept.Protected = true
	pods := []Pod{
		pod("within-high", 5, 90, 100), pod("within-low", 0, 10, 100), pod("exactly", 0, 100, 100), kept,
		pod("over-high", 5, 900, 100), pod("over-little", 0, 150, 100), pod("over-much", 0, 300, 100),
		pod("over-much-again", 0, 200, 0), unknown,
	}
	for of, want := range map[signal.Signal]string{
		signal.MemoryAvailable:            "unknown over-much over-much-again over-little over-high exactly within-low within-high",
		signal.AllocatableMemoryAvailable: "unknown over-much over-much-again over-little over-high exactly within-low within-high",
		signal.NodeFsAvailable:            "unknown over-much over-much-again over-little over-high exactly within-low within-high",
	} {
		if got := names(Order(pods, of)); got != want {
			t.Errorf("%s: %s, want %s", of, got, want)
		}
	}
	for i := range pods {
		pods[i].Request = 0
	}
	const want = "over-much over-much-again over-little exactly within-low over-high within-high unknown"
	for _, of := range []signal.Signal{signal.PIDAvailable, signal.NodeFsInodesFree} {
		if got := names(Order(pods, of)); got != want {
			t.Errorf("%s: %s, want %s", of, got, want)
		}
	}
	if pods[3].Name != "kept" || pods[8].Name != "unknown" {
		t.Error("what was given is not as it was")
	}
}

// next is the documentation's order in its own words, pod by pod: of those that are left, who goes now.
func next(left []Pod, of signal.Signal) Pod {
	keep := func(good func(Pod) bool) {
		var some []Pod
		for _, p := range left {
			if good(p) {
				some = append(some, p)
			}
		}
		if len(some) > 0 {
			left = some
		}
	}
	leastPriority := func() {
		lowest := left[0].Priority
		for _, p := range left {
			if p.Priority < lowest {
				lowest = p.Priority
			}
		}
		keep(func(p Pod) bool { return p.Priority == lowest })
	}
	unknownFirst := func() { keep(func(p Pod) bool { return !p.Known }) }
	requests := map[signal.Signal]bool{ // "inodes and PIDs have no requests"
		"memory.available": true, "allocatableMemory.available": true, "nodefs.available": true, "imagefs.available": true,
		"containerfs.available": true,
	}
	if requests[of] {
		unknownFirst()
		// "1. Whether the pod's resource usage exceeds requests"
		keep(func(p Pod) bool { return p.Known && p.Usage > p.Request })
		leastPriority() // "2. Pod Priority"
	} else {
		leastPriority() // "it uses the Priority to determine the eviction order"
		unknownFirst()
	}
	if left[0].Known { // "3. The pod's resource usage relative to requests"
		most := left[0].Usage - left[0].Request
		for _, p := range left {
			if p.Usage-p.Request > most {
				most = p.Usage - p.Request
			}
		}
		keep(func(p Pod) bool { return p.Usage-p.Request == most })
	}
	out := left[0]
	for _, p := range left { // whose name comes first, for pods that nothing else tells apart
		if p.Namespace+"\x00"+p.Name+"\x00"+string(p.UID) < out.Namespace+"\x00"+out.Name+"\x00"+string(out.UID) {
			out = p
		}
	}
	return out
}

// TestOrderIsTheDocumentedOne compares the order with that of the documentation, for 1,000 sequences of sets of pods
// whose usage changes, and of which one goes at each step.
func TestOrderIsTheDocumentedOne(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 13))
		of := signal.All()[random.IntN(len(signal.All()))]
		var pods []Pod
		for i := range 1 + random.IntN(12) {
			pods = append(pods, Pod{
				UID: types.UID(fmt.Sprint(i)), Namespace: string(rune('a' + random.IntN(2))), Name: string(rune('a' + random.IntN(4))),
				Priority: int32(random.IntN(3)) - 1, Protected: random.IntN(6) == 0,
			})
			if of.Requestable() {
				pods[i].Request = int64(random.IntN(4)) * 100
			}
		}
		for step := 0; len(pods) > 0; step++ {
			var left []Pod
			for i := range pods {
				pods[i].Known, pods[i].Usage = random.IntN(5) > 0, int64(random.IntN(6))*100
				if !pods[i].Protected {
					left = append(left, pods[i])
				}
			}
			random.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
			got := Order(pods, of)
			if len(got) != len(left) {
				t.Fatalf("seed %d, step %d: %d of %d pods that may go", seed, step, len(got), len(left))
			}
			for i := range got {
				want := next(left, of)
				if got[i].UID != want.UID {
					t.Fatalf("seed %d, step %d, %s: place %d is\n%+v, want\n%+v, of\n%+v", seed, step, of, i+1, got[i], want, pods)
				}
				left = slices.DeleteFunc(left, func(p Pod) bool { return p.UID == want.UID })
			}
			gone := pods[0].UID
			if len(got) > 0 {
				gone = got[0].UID
			}
			pods = slices.DeleteFunc(pods, func(p Pod) bool { return p.UID == gone })
		}
	}
}

func TestExplain(t *testing.T) {
	unknown, kept, ending := pod("unknown", 0, 0, 0), pod("kept", 7, 1<<20, 0), pod("ending", 0, 3<<20, 4<<20)
	unknown.Known, kept.Protected, ending.Ending = false, true, true
	pods := []Pod{kept, ending, pod("b", 0, 3<<20, 1<<20), pod("c", 1, 3<<20, 1<<20), pod("a", 0, 3<<20, 2<<20), unknown, pod("a2", 0, 3<<20, 2<<20)}
	var got []string
	for _, l := range Explain(pods, signal.MemoryAvailable) {
		got = append(got, fmt.Sprintf("%d %s: %s; %s", l.Place, l.Pod.Name, l.Figures, l.Before))
	}
	want := []string{
		"1 unknown: usage is not known, priority 0; its usage is not known, that of default/b is",
		"2 b: usage 3Mi - request 1Mi = 2Mi, priority 0; it is 2Mi above its request, default/a is 1Mi above its request",
		"3 a: usage 3Mi - request 2Mi = 1Mi, priority 0; it is equal to default/a2, and its name comes first",
		"4 a2: usage 3Mi - request 2Mi = 1Mi, priority 0; its priority 0 is lower than 1 of default/c",
		"5 c: usage 3Mi - request 1Mi = 2Mi, priority 1; it has more than its request, default/ending has not",
		"6 ending: usage 3Mi - request 4Mi = -1Mi, priority 0, ends already; ",
		"0 kept: usage 1Mi - request 0 = 1Mi, priority 7, protected; ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	lines := Explain([]Pod{pod("many", 0, 2000, 0), pod("few", 0, 7, 0)}, signal.PIDAvailable)
	if got := lines[0].Figures + "; " + lines[0].Before; got != "usage 2k, priority 0; it has 2k, default/few has 7" {
		t.Error(got)
	}
	if !lines[0].Pod.Known || Explain(pods, signal.MemoryAvailable)[6].Pod.Protected == false || !pods[0].Protected {
		t.Error("the pods are not told of as they are")
	}
}

// TestExplainAtLeast: what was not counted to its end is told as that, and is not nothing.
func TestExplainAtLeast(t *testing.T) {
	some, none, few := pod("some", 0, 3<<20, 1<<20), pod("none", 0, 0, 1<<20), pod("few", 0, 2<<20, 1<<20)
	some.AtLeast, none.AtLeast = true, true
	var got []string
	for _, l := range Explain([]Pod{none, few, some}, signal.NodeFsAvailable) {
		got = append(got, fmt.Sprintf("%s: %s; %s", l.Pod.Name, l.Figures, l.Before))
	}
	want := []string{
		"some: usage at least 3Mi - request 1Mi = 2Mi, priority 0; it is at least 2Mi above its request, default/few is 1Mi above its request",
		"few: usage 2Mi - request 1Mi = 1Mi, priority 0; it has more than its request, default/none has not",
		"none: usage at least 0 - request 1Mi = -1Mi, priority 0; ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	lines := Explain([]Pod{few, some}, signal.NodeFsInodesFree)
	if got := lines[0].Before; !strings.HasPrefix(got, "it has at least ") || none.Useless() {
		t.Error(got)
	}
}

func TestSimulate(t *testing.T) {
	ending, kept, unknown := pod("ending", 9, 10, 100), pod("kept", 0, 1000, 0), pod("unknown", 0, 0, 0)
	ending.Ending, kept.Protected, unknown.Known = true, true, false
	pods := []Pod{pod("within", 0, 50, 100), pod("over", 0, 30, 0), pod("over-high", 1, 40, 0), pod("nothing", -1, 0, 0), kept}
	for _, tt := range []struct {
		more                  []Pod
		available, at, beyond int64
		want                  string
		enough                bool
	}{
		{available: 100, at: 100, beyond: 50, enough: true},
		{available: 90, at: 100, want: "over+30=120", enough: true},
		{available: 70, at: 100, want: "over+30=100", enough: true},
		{available: 69, at: 100, want: "over+30=99 over-high+40=139", enough: true},
		{available: 90, at: 100, beyond: 21, want: "over+30=120 over-high+40=160", enough: true},
		{available: 0, at: 500, want: "over+30=30 over-high+40=70 within+50=120"},
		{more: []Pod{ending}, available: 95, at: 100, want: "ending+10=105", enough: true},
		{more: []Pod{unknown}, available: 95, at: 100, want: "unknown+0=95 over+30=125", enough: true},
	} {
		o := Simulate(append(slices.Clone(pods), tt.more...), signal.MemoryAvailable, tt.available, tt.at, tt.beyond)
		var got []string
		for _, s := range o.Steps {
			got = append(got, fmt.Sprintf("%s+%d=%d", s.Pod.Name, s.Frees, s.After))
		}
		if strings.Join(got, " ") != tt.want || o.Enough != tt.enough || o.Until != tt.at+tt.beyond || o.Met != (tt.available < tt.at) {
			t.Errorf("%d below %d: %v, %+v, want %s", tt.available, tt.at, got, o, tt.want)
		}
	}
}

func TestStalled(t *testing.T) {
	in := func(p Pod, class corev1.PodQOSClass) Pod {
		p.QOS = class
		return p
	}
	burstable, best := in(pod("burstable", -5, 1000, 1), corev1.PodQOSBurstable), in(pod("best", 5, 10, 0), corev1.PodQOSBestEffort)
	worse, empty := in(pod("worse", 5, 20, 0), corev1.PodQOSBestEffort), in(pod("empty", 0, 0, 0), corev1.PodQOSBestEffort)
	guaranteed, kept := in(pod("guaranteed", 0, 5000, 5000), corev1.PodQOSGuaranteed), in(pod("kept", 0, 1, 0), corev1.PodQOSBestEffort)
	kept.Protected = true
	for want, pods := range map[string][]Pod{
		"worse":      {burstable, best, empty, worse, guaranteed, kept},
		"burstable":  {guaranteed, empty, burstable, kept},
		"guaranteed": {guaranteed},
	} {
		if got := Stalled(pods); got == nil || got.Name != want {
			t.Errorf("%v, want %s", got, want)
		}
	}
	if got := Stalled([]Pod{kept, empty}); got != nil {
		t.Errorf("%v, and nobody may go", got)
	}
}
