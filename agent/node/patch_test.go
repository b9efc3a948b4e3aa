package node

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// chance makes facts of any kind.
func chance(r *rand.Rand) Facts {
	f := testFacts()
	some := func(kind string) (out []string) {
		for i := range r.IntN(4) {
			out = append(out, fmt.Sprintf("%s-%d", kind, r.IntN(3)+3*i))
		}
		return out
	}
	f.Addresses = nil
	for i := range r.IntN(4) {
		f.Addresses = append(f.Addresses, fmt.Sprintf("192.0.2.%d", 10*i+r.IntN(3)))
	}
	f.Resources.Devices, f.Resources.Well = corev1.ResourceList{}, corev1.ResourceList{}
	for _, name := range some("example.com/d") {
		f.Resources.Devices[corev1.ResourceName(name)] = *resource.NewQuantity(r.Int64N(5), resource.DecimalSI)
	}
	for _, name := range some("i") {
		f.Images = append(f.Images, Image{Names: []string{name}, Size: r.Int64N(3)})
	}
	for _, name := range some("v") {
		f.InUse = append(f.InUse, corev1.UniqueVolumeName(name))
	}
	for _, name := range some("d") {
		f.Drivers = append(f.Drivers, Driver{Name: name, NodeID: "i", Topology: map[string]string{"example.com/" + name: "z"}})
	}
	for _, p := range pressures {
		f.Pressure = append(f.Pressure, Pressure{p.of, r.IntN(2) == 0})
	}
	f.Machine.Swap = r.Int64N(2)
	f.Runtime.Status = ready(r.IntN(2) == 0)
	for _, name := range some("h") {
		f.Runtime.Status.RuntimeHandlers = append(f.Runtime.Status.RuntimeHandlers, &runtimeapi.RuntimeHandler{
			Name: name, Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: r.IntN(2) == 0},
		})
	}
	if r.IntN(2) == 0 {
		f.Runtime.Status.Features = &runtimeapi.RuntimeFeatures{MountOptions: r.IntN(2) == 0}
	}
	return f
}

// TestPatches has one node become another by the patch, whatever the two are, with nothing of others lost.
func TestPatches(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	f := chance(r)
	now := Build(&f, nil, true, testNow)
	now.Labels["theirs"] = "1"
	now.Annotations["theirs"] = "1"
	now.Status.Capacity["example.com/theirs"] = resource.MustParse("3")
	now.Status.Conditions = append(now.Status.Conditions, corev1.NodeCondition{Type: "Theirs", Status: corev1.ConditionTrue})
	now.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "theirs"}}
	rounds := 2000
	if testing.Short() {
		rounds /= 20
	}
	for range rounds {
		f := chance(r)
		want := Build(&f, now, r.IntN(2) == 0, testNow)
		d, err := compare(now, want)
		if err != nil {
			t.Fatal(err)
		}
		if same := equality.Semantic.DeepEqual(now, want); same == d.changed() {
			t.Fatalf("changed %v: %+v", d.changed(), d)
		}
		patch, err := json.Marshal(d.patch())
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(now)
		if err != nil {
			t.Fatal(err)
		}
		got := &corev1.Node{}
		if text, err = strategicpatch.StrategicMergePatch(text, patch, got); err != nil {
			t.Fatalf("%s: %v", patch, err)
		}
		if err := json.Unmarshal(text, got); err != nil {
			t.Fatal(err)
		}
		sorted(got)
		sorted(want)
		if !equality.Semantic.DeepEqual(got, want) {
			is, _ := json.Marshal(got)
			should, _ := json.Marshal(want)
			t.Fatalf("patch %s\nof   %s\nis   %s\nwant %s", patch, text, is, should)
		}
		if got.Labels["theirs"] != "1" || got.Annotations["theirs"] != "1" || statusOf(got, "Theirs") != corev1.ConditionTrue ||
			len(got.Status.VolumesAttached) != 1 || got.Status.Capacity.Name("example.com/theirs", resource.DecimalSI).Value() != 3 {
			t.Fatalf("what is others' has changed: %s", text)
		}
		now = got
	}
}

// sorted has the conditions in an order of their own: a patch says none. Times are those of JSON.
func sorted(n *corev1.Node) {
	slices.SortFunc(n.Status.Conditions, func(a, b corev1.NodeCondition) int {
		if a.Type < b.Type {
			return -1
		}
		return 1
	})
}

func TestVersions(t *testing.T) {
	v := &versions{}
	for i, one := range []struct {
		of      object
		version string
		back    bool
	}{
		{ofNode, "10", false},
		{ofLease, "12", false},
		{ofNode, "11", false},
		{ofNode, "11", false},
		{ofNode, "x", false},
		{ofLease, "9", true},
		{ofNode, "8", false}, // of the same restore
		{ofNode, "7", true},
	} {
		if got := v.saw(one.of, one.version); got != one.back {
			t.Errorf("%d: %v", i, got)
		}
	}
}

func FuzzMachine(f *testing.F) {
	f.Add([]byte("PRETTY_NAME=\"x\""), []byte("SwapTotal: 5 kB"))
	f.Add([]byte("PRETTY_NAME='\nPRETTY_NAME=\"\\"), []byte("SwapTotal: 99999999999999999999 kB"))
	f.Fuzz(func(t *testing.T, release, meminfo []byte) {
		root := t.TempDir()
		write(t, root, "etc/os-release", string(release))
		write(t, root, "proc/meminfo", string(meminfo))
		if m := ReadMachine(root); m.Swap < 0 || m.OS == "" && len(release) == 0 {
			t.Errorf("%+v", m)
		}
	})
}
