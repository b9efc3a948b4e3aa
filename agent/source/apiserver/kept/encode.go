package kept

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-node/berth/agent/object"
)

// change is what is sealed at a time: what there is now, in place of what has its key or uid, and what there is no
// more. Pods and objects are protobuf, as the API server sends them.
type change struct {
	Objects []item    `json:"objects,omitempty"`
	Pods    []podItem `json:"pods,omitempty"`
	Issued  []given   `json:"issued,omitempty"`
	Gone    []string  `json:"gone,omitempty"` // keys of objects
	Ended   []string  `json:"ended,omitempty"`
}

func (c *change) empty() bool {
	return len(c.Objects)+len(c.Pods)+len(c.Issued)+len(c.Gone)+len(c.Ended) == 0
}

type item struct {
	Key  string      `json:"key"`
	Kind object.Kind `json:"kind"`
	Data []byte      `json:"data"`

	from object.Object // that it was made of
}

type podItem struct {
	UID  string   `json:"uid"`
	Data []byte   `json:"data"`
	Of   []string `json:"of,omitempty"` // the keys of the objects that it needs

	from *corev1.Pod
}

// given is something that the API server has made for a pod, by a name of whoever asked for it.
type given struct {
	UID  string `json:"uid"`
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// state is what the file has, or is to have.
type state struct {
	objects map[string]item
	pods    map[string]podItem
	issued  map[string]map[string][]byte
}

func newState() *state {
	return &state{map[string]item{}, map[string]podItem{}, map[string]map[string][]byte{}}
}

// apply does a change.
func (s *state) apply(c change) {
	for _, o := range c.Objects {
		s.objects[o.Key] = o
	}
	for _, p := range c.Pods {
		s.pods[p.UID] = p
	}
	for _, g := range c.Issued {
		if s.issued[g.UID] == nil {
			s.issued[g.UID] = map[string][]byte{}
		}
		s.issued[g.UID][g.Name] = g.Data
	}
	for _, key := range c.Gone {
		delete(s.objects, key)
	}
	for _, uid := range c.Ended {
		delete(s.pods, uid)
		delete(s.issued, uid)
	}
}

// whole are the changes that make it of nothing: one for each thing, so that what becomes of one does not matter to
// the others.
func (s *state) whole() (all []change) {
	for _, o := range s.objects {
		all = append(all, change{Objects: []item{o}})
	}
	for _, p := range s.pods {
		all = append(all, change{Pods: []podItem{p}})
	}
	for uid, of := range s.issued {
		for name, data := range of {
			all = append(all, change{Issued: []given{{uid, name, data}}})
		}
	}
	return all
}

// size is about how many bytes it takes.
func (s *state) size() (n int) {
	for _, o := range s.objects {
		n += cost(o.Data)
	}
	for uid, p := range s.pods {
		n += cost(p.Data)
		for _, data := range s.issued[uid] {
			n += cost(data)
		}
	}
	return n
}

// plan is what makes it be of these pods, of at most so many bytes. left is how many pods do not fit.
func (s *state) plan(pods []Pod, most int) (c change, size, left int) {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(priority(b.Pod), priority(a.Pod)), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	objects, here := map[string]bool{}, map[string]bool{}
	for _, p := range pods {
		one, ok := s.pod(p)
		if !ok {
			left++
			continue
		}
		more, added := cost(one.Data), []item{}
		for _, o := range p.Objects {
			it, ok := s.object(o)
			if !ok {
				continue
			}
			one.Of = append(one.Of, it.Key)
			if !objects[it.Key] {
				added, more = append(added, it), more+cost(it.Data)
			}
		}
		for _, data := range s.issued[one.UID] {
			more += cost(data)
		}
		if size+more > most {
			left++
			continue
		}
		size += more
		slices.Sort(one.Of)
		one.Of = slices.Compact(one.Of)
		for _, it := range added {
			objects[it.Key] = true
			if was, has := s.objects[it.Key]; !has || !bytes.Equal(was.Data, it.Data) {
				c.Objects = append(c.Objects, it)
			} else {
				s.objects[it.Key] = it // of another pointer, which need not be looked at again
			}
		}
		here[one.UID] = true
		if was, has := s.pods[one.UID]; !has || !bytes.Equal(was.Data, one.Data) || !slices.Equal(was.Of, one.Of) {
			c.Pods = append(c.Pods, one)
		} else {
			s.pods[one.UID] = one
		}
	}
	for key := range s.objects {
		if !objects[key] {
			c.Gone = append(c.Gone, key)
		}
	}
	for uid := range s.pods {
		if !here[uid] {
			c.Ended = append(c.Ended, uid)
		}
	}
	return c, size, left
}

// pod is what is kept of a pod. It is written anew only when it is another one: nobody changes what a pointer leads to.
func (s *state) pod(p Pod) (podItem, bool) {
	uid := string(p.Pod.UID)
	if was, has := s.pods[uid]; has && was.from == p.Pod {
		was.Of = nil
		return was, true
	}
	data, err := bare(p.Pod).Marshal()
	return podItem{UID: uid, Data: data, from: p.Pod}, err == nil
}

// object is what is kept of an object, likewise.
func (s *state) object(o object.Object) (item, bool) {
	ref := refOf(o)
	key := ref.String()
	if was, has := s.objects[key]; has && was.from == o {
		return was, true
	}
	m, can := o.(marshaler)
	if !can {
		return item{}, false
	}
	data, err := m.Marshal()
	return item{key, ref.Kind, data, o}, err == nil
}

type marshaler interface{ Marshal() ([]byte, error) }

type unmarshaler interface{ Unmarshal(data []byte) error }

// cost is about how many bytes some data takes in the text.
func cost(data []byte) int { return len(data)*4/3 + 64 }

func priority(p *corev1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

// bare is a pod without what is of the moment: it would be written anew with each change of its status. What a claim is
// called is part of what is desired.
func bare(p *corev1.Pod) *corev1.Pod {
	out := *p
	out.ResourceVersion = ""
	out.Status = corev1.PodStatus{
		Phase: p.Status.Phase, QOSClass: p.Status.QOSClass, ResourceClaimStatuses: p.Status.ResourceClaimStatuses,
		StartTime: p.Status.StartTime,
	}
	return &out
}

func refOf(o object.Object) object.Ref {
	k := object.Kind(o.GetObjectKind().GroupVersionKind().Kind)
	return object.RefTo(k, o.GetNamespace(), o.GetName())
}

// decode are the pods of a state, in the order of their names, and why there are not all: a pod is there with all that
// it needs, or not at all.
func (s *state) decode() ([]Pod, []error) {
	var failed []error
	objects := map[string]object.Object{}
	for key, it := range s.objects {
		o, err := it.decode()
		if err != nil {
			failed = append(failed, err)
			continue
		}
		objects[key] = o
	}
	var pods []Pod
	for _, it := range s.pods {
		p, err := it.decode(objects)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		pods = append(pods, p)
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	return pods, failed
}

func (i item) decode() (object.Object, error) {
	o, version := i.Kind.Empty()
	into, ok := o.(unmarshaler)
	if !ok {
		return nil, fmt.Errorf("read %s: its kind is not known", i.Key)
	}
	if err := into.Unmarshal(i.Data); err != nil {
		return nil, fmt.Errorf("read %s: %w", i.Key, err)
	}
	o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(version, string(i.Kind)))
	return o, nil
}

func (i podItem) decode(objects map[string]object.Object) (Pod, error) {
	p := Pod{Pod: new(corev1.Pod)}
	if err := p.Pod.Unmarshal(i.Data); err != nil {
		return p, fmt.Errorf("read pod of uid %s: %w", i.UID, err)
	}
	for _, key := range i.Of {
		o := objects[key]
		if o == nil {
			return p, fmt.Errorf("read pod %s/%s: %s, which it needs, is not there", p.Pod.Namespace, p.Pod.Name, key)
		}
		p.Objects = append(p.Objects, o)
	}
	return p, nil
}
