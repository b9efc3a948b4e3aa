package history

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// templates are some that differ in few places, each of which says the same in several ways.
func templates(r *rand.Rand) *corev1.PodTemplateSpec {
	one := func(words ...string) string { return words[r.IntN(len(words))] }
	t := &corev1.PodTemplateSpec{}
	if r.IntN(2) == 0 {
		t.Labels = map[string]string{}
	}
	if r.IntN(2) == 0 {
		t.CreationTimestamp = metav1.NewTime(time.Unix(1, 0).In(time.FixedZone("there", 3600*r.IntN(2))))
	}
	c := corev1.Container{Name: "c", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
	for _, name := range []corev1.ResourceName{"cpu", "memory"} {
		c.Resources.Limits[name] = resource.MustParse(one("1", "1000m", "1024", "1Ki", "1e3", "1k", "5000000001", "100n", "-1", "7E", "7000P"))
	}
	if r.IntN(2) == 0 {
		c.Args = []string{}
	}
	if r.IntN(3) == 0 {
		c.Command = []string{one("a", "b")}
	}
	if r.IntN(3) == 0 {
		c.TTY = true
	}
	t.Spec.Containers = []corev1.Container{c}
	if r.IntN(3) == 0 {
		t.Spec.Priority = new(int32(r.IntN(2)))
	}
	return t
}

// TestPrintOf has templates that are semantically equal have one print, and others have others.
func TestPrintOf(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	equal := 0
	for range 10_000 {
		a, b := templates(r), templates(r)
		for range r.IntN(2) {
			// In the most of the cases they would never be equal.
			b.Spec = a.Spec
			b.Spec.Containers = []corev1.Container{*a.Spec.Containers[0].DeepCopy()}
			c := &b.Spec.Containers[0]
			c.Resources.Limits = templates(r).Spec.Containers[0].Resources.Limits
		}
		same := equality.Semantic.DeepEqual(a, b)
		if got := printOf(a) == printOf(b); got != same {
			t.Fatalf("%v and %v: %t, and their prints: %t", a, b, same, got)
		}
		if same {
			equal++
		}
	}
	if equal < 20 {
		t.Errorf("%d of them were equal", equal)
	}
}

// TestManyTemplates has thousands of objects of an owner: the templates of those that have not changed are not looked
// at again, and those that are gone are forgotten.
func TestManyTemplates(t *testing.T) {
	p, owner, read := NewPrints(), cache.ObjectName{Namespace: "n", Name: "o"}, 0
	of := func(name string) *corev1.PodTemplateSpec {
		return &corev1.PodTemplateSpec{Spec: corev1.PodSpec{SchedulerName: name}}
	}
	look := func(from, n int, versions map[int]string) (found []int) {
		read = 0
		like := p.Like(owner, n, of("700"))
		for i := from; i < from+n; i++ {
			o := &metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1" + versions[i]}
			if like(o, func() *corev1.PodTemplateSpec { read++; return of(fmt.Sprint(i) + versions[i]) }) {
				found = append(found, i)
			}
		}
		return found
	}
	if found := look(0, 2000, nil); len(found) != 1 || found[0] != 700 || read != 2001 {
		t.Errorf("found are %v, %d were read", found, read)
	}
	if found := look(0, 2000, nil); len(found) != 1 || read != 1 {
		t.Errorf("found are %v, %d were read again", found, read)
	}
	if found := look(0, 2000, map[int]string{7: "00", 700: "0"}); len(found) != 1 || found[0] != 7 || read != 3 {
		t.Errorf("where some have changed found are %v, %d were read", found, read)
	}
	for i := range 10 {
		look(i*100, 100, nil)
	}
	if n := len(p.of[owner]); n > 300 {
		t.Errorf("%d are remembered of 100", n)
	}
	look(0, few, nil)
	if len(p.of) != 0 {
		t.Error("it is remembered of few")
	}
}

// TestManyRevisions has a user have made as many revisions as he likes, of the highest number there is, and allow no
// more: they are read once.
func TestManyRevisions(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "*", func(clienttesting.Action) (bool, apiruntime.Object, error) {
		return true, nil, errors.New("no more")
	})
	k := Keeper{Client: client, Prints: NewPrints()}
	o := Of{Owner: &metav1.ObjectMeta{Namespace: "n", Name: "o"}, Template: &corev1.PodTemplateSpec{}}
	var all []*appsv1.ControllerRevision
	for i := range 500 {
		r := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"}, Revision: math.MaxInt64}
		data, err := Data(&corev1.PodTemplateSpec{Spec: corev1.PodSpec{SchedulerName: fmt.Sprint(i)}})
		if err != nil {
			t.Fatal(err)
		}
		r.Data.Raw = data
		all = append(all, r)
	}
	look := func() uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := k.Now(t.Context(), o, all); err == nil {
			t.Fatal("one more is made")
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	look()
	if n := look(); n > 100<<10 {
		t.Errorf("another look takes %d bytes", n)
	}
	// One of them that is of the template has the highest number already.
	o.Template.Spec.SchedulerName = "250"
	if r, err := k.Now(t.Context(), o, all); err != nil || r != all[250] || len(client.Actions()) != 2 {
		t.Errorf("it is %v, %v, after %d requests", r, err, len(client.Actions()))
	}
}
