package history

import (
	"hash/maphash"
	"reflect"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// few is of how many objects of an owner the templates are compared each time: that is cheaper than to remember them.
const few = 20

// Prints remembers what the templates of an owner's objects come to. Anybody may make thousands of sets or revisions
// for an owner, of templates as large as an object may be that differ at their end only, and each change of one of them
// has the owner looked at.
type Prints struct {
	mu sync.Mutex
	of map[cache.ObjectName]map[types.UID]printed
}

// printed is the print of one version of an object.
type printed struct {
	version string
	print   uint64
}

// NewPrints makes a memory that is empty.
func NewPrints() *Prints { return &Prints{of: map[cache.ObjectName]map[types.UID]printed{}} }

// Forget is called when an owner is gone.
func (p *Prints) Forget(owner cache.ObjectName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, owner)
}

// seed makes prints that nobody can foresee.
var seed = maphash.MakeSeed()

// Like says of each of an owner's n objects whether its template is as the one that is wanted. The template is read
// where that is not known; nil: it has none. An owner is looked at by one worker at a time.
func (p *Prints) Like(owner cache.ObjectName, n int, wanted *corev1.PodTemplateSpec) func(o metav1.Object, read func() *corev1.PodTemplateSpec) bool {
	same := func(t *corev1.PodTemplateSpec) bool { return t != nil && equality.Semantic.DeepEqual(t, wanted) }
	if n <= few {
		p.Forget(owner)
		return func(_ metav1.Object, read func() *corev1.PodTemplateSpec) bool { return same(read()) }
	}
	p.mu.Lock()
	known := p.of[owner]
	if known == nil || len(known) > 2*n {
		// Those that are gone are forgotten when they are more than those that are.
		known = make(map[types.UID]printed, n)
		p.of[owner] = known
	}
	p.mu.Unlock()
	want := printOf(wanted)
	return func(o metav1.Object, read func() *corev1.PodTemplateSpec) bool {
		has, is := known[o.GetUID()]
		if !is || has.version != o.GetResourceVersion() {
			has = printed{version: o.GetResourceVersion()}
			if t := read(); t != nil {
				has.print = printOf(t)
			}
			known[o.GetUID()] = has
		}
		return has.print == want && same(read())
	}
}

// printOf is alike for templates that are semantically equal.
func printOf(t *corev1.PodTemplateSpec) uint64 { return printValue(reflect.ValueOf(t)) }

// printValue follows [equality.Semantic]: an empty list or map is as none, and quantities and times are as what they
// come to.
func printValue(v reflect.Value) uint64 {
	switch one := v.Interface().(type) {
	case resource.Quantity:
		return printQuantity(one)
	case metav1.Time:
		return maphash.Comparable(seed, one.UnixNano())
	case []byte:
		return maphash.Bytes(seed, one)
	}
	var h uint64
	add := func(next uint64) { h = maphash.Comparable(seed, [2]uint64{h, next}) }
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return 0
		}
		add(printValue(v.Elem()))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				add(printValue(v.Field(i)))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			add(printValue(v.Index(i)))
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next(); {
			// In whatever order they come.
			h += maphash.Comparable(seed, [2]uint64{printValue(entries.Key()), printValue(entries.Value())})
		}
	default:
		if v.Comparable() {
			return maphash.Comparable(seed, v.Interface())
		}
	}
	return h
}

// printQuantity does not tell quantities apart that are as much, however they are written.
func printQuantity(q resource.Quantity) uint64 {
	n := q.Value() // which is rounded up
	const exact = 1 << 32
	if n < exact && n > -exact {
		n = q.ScaledValue(resource.Nano)
	}
	return maphash.Comparable(seed, n)
}
