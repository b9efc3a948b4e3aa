package kept

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-node/berth/agent/object"
)

// content is what is sealed. Pods and objects are protobuf, as the API server sends them.
type content struct {
	Pods    [][]byte `json:"pods"`
	Objects []one    `json:"objects"`
	// Of lists which objects each of the pods needs.
	Of [][]int `json:"of"`
}

type one struct {
	Kind object.Kind `json:"kind"`
	Data []byte      `json:"data"`
}

type marshaler interface{ Marshal() ([]byte, error) }

type unmarshaler interface{ Unmarshal(data []byte) error }

// encode makes one text of pods, the same for the same ones, of at most so many bytes. left is how many pods do not
// fit.
func encode(pods []Pod, most int) (plain []byte, left int) {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b Pod) int {
		return cmp.Or(cmp.Compare(priority(b.Pod), priority(a.Pod)), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	var c content
	size, index := 0, map[object.Ref]int{}
	for _, p := range pods {
		data, err := bare(p.Pod).Marshal()
		if err != nil {
			left++
			continue
		}
		more, refs, added, names := cost(data), []int{}, []one{}, []object.Ref{}
		for _, o := range sorted(p.Objects) {
			ref := refOf(o)
			at, has := index[ref]
			if !has {
				text, err := o.(marshaler).Marshal()
				if err != nil {
					continue
				}
				at = len(c.Objects) + len(added)
				added, names = append(added, one{ref.Kind, text}), append(names, ref)
				more += cost(text)
			}
			refs = append(refs, at)
		}
		if size+more > most {
			left++
			continue
		}
		size += more
		for i, ref := range names {
			index[ref] = len(c.Objects) + i
		}
		c.Pods, c.Of, c.Objects = append(c.Pods, data), append(c.Of, refs), append(c.Objects, added...)
	}
	plain, err := json.Marshal(c)
	if err != nil {
		return nil, len(pods)
	}
	return plain, left
}

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

// sorted are the objects that are kept, each of which can be: tokens of service accounts are for now, not for later.
func sorted(objects []object.Object) []object.Object {
	out := slices.DeleteFunc(slices.Clone(objects), func(o object.Object) bool {
		s, ok := o.(*corev1.Secret)
		_, can := o.(marshaler)
		return !can || ok && s.Type == corev1.SecretTypeServiceAccountToken
	})
	slices.SortFunc(out, func(a, b object.Object) int {
		x, y := refOf(a), refOf(b)
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}

func refOf(o object.Object) object.Ref {
	k := object.Kind(o.GetObjectKind().GroupVersionKind().Kind)
	return object.RefTo(k, o.GetNamespace(), o.GetName())
}

// decode is the reverse of encode.
func decode(plain []byte) ([]Pod, error) {
	var c content
	if err := json.Unmarshal(plain, &c); err != nil {
		return nil, err
	}
	if len(c.Of) != len(c.Pods) {
		return nil, fmt.Errorf("it has %d pods, and the objects of %d", len(c.Pods), len(c.Of))
	}
	var objects []object.Object
	for _, one := range c.Objects {
		o, version := one.Kind.Empty()
		into, ok := o.(unmarshaler)
		if !ok {
			return nil, fmt.Errorf("it has a %q, which is not known", one.Kind)
		}
		if err := into.Unmarshal(one.Data); err != nil {
			return nil, fmt.Errorf("%s: %w", one.Kind, err)
		}
		o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(version, string(one.Kind)))
		objects = append(objects, o)
	}
	var pods []Pod
	for i, data := range c.Pods {
		p := Pod{Pod: new(corev1.Pod)}
		if err := p.Pod.Unmarshal(data); err != nil {
			return nil, fmt.Errorf("pod: %w", err)
		}
		for _, at := range c.Of[i] {
			if at < 0 || at >= len(objects) {
				return nil, fmt.Errorf("pod %s/%s has an object that is not there", p.Pod.Namespace, p.Pod.Name)
			}
			p.Objects = append(p.Objects, objects[at])
		}
		pods = append(pods, p)
	}
	return pods, nil
}
