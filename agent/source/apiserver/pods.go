package apiserver

import (
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source/apiserver/follow"
)

// maxPods is how many pods a node may be told of: far beyond what any runs.
const maxPods = 10_000

func podsOf(node string) follow.Target {
	return follow.Target{
		Resource: corev1.SchemeGroupVersion.WithResource("pods"),
		Fields:   fields.OneTermEqualSelector("spec.nodeName", node).String(),
		List:     func() follow.List { return new(corev1.PodList) },
		Max:      maxPods,
		Sure:     true,
	}
}

// podState is what is known of a pod.
type podState struct {
	key   types.NamespacedName
	pod   *corev1.Pod // as the server has it
	first string      // when it was seen first
	kept  bool        // the server has not been asked yet: it was kept on the node

	recorded recorded // on the node, or it cannot be

	refs  map[object.Ref]bool // what it refers to, directly or not
	lacks map[object.Ref]bool // those of them of which the server has not said anything yet

	since, heard time.Time // when it began to wait for them, and when the last one was answered
}

// podSink takes what the watch on pods tells, in its goroutine.
type podSink struct{ s *Source }

func (p podSink) All(objects []follow.Object) {
	p.s.do(func() { p.s.allPods(objects) })
}

func (p podSink) Changed(o follow.Object) {
	p.s.do(func() { p.s.seen(o) })
}

func (p podSink) Removed(o follow.Object) {
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	p.s.do(func() {
		if have := p.s.pods[key]; have != nil && have.pod.UID == o.GetUID() {
			p.s.gone(key)
		}
	})
}

func (p podSink) Failed(err error) {
	if err == nil {
		if p.s.reach.here() {
			p.s.log.Info("API server answers again")
			p.s.do(func() {
				p.s.objects.again() // as with pods, its history may be another one
				p.s.cfg.Here()
			})
		}
		return
	}
	if p.s.reach.away() {
		p.s.log.Warn("API server does not answer, and its pods stay as they are", "error", err)
	}
}

func (p podSink) Back(from, to string) {
	p.s.log.Warn("API server has an older history than it had, as one restored from a backup: everything is asked for anew, "+
		"and what it has now counts", "version", to, "before", from)
	p.s.do(func() {
		p.s.cfg.Back() // before it is told of pods as they were then
		p.s.objects.again()
	})
}

// allPods has just these pods be there.
func (s *Source) allPods(objects []follow.Object) {
	here := make(map[types.NamespacedName]bool, len(objects))
	for _, o := range objects {
		here[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = true
	}
	for key := range s.pods {
		if !here[key] {
			s.gone(key)
		}
	}
	for _, o := range objects {
		s.seen(o)
	}
	if s.listed {
		return
	}
	s.listed = true
	for key := range s.waiting.pods {
		s.initial[key] = true
	}
	for key := range s.keeping.held {
		s.initial[key] = true
	}
	s.cfg.Listed()
	s.queue.listed = len(s.initial) == 0
}

// seen takes a state of a pod.
func (s *Source) seen(o follow.Object) {
	pod, ok := o.(*corev1.Pod)
	if !ok {
		s.unread(o)
		return
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	if err := s.ours(key, pod); err != nil {
		name := shown(key.String())
		s.once.warn("pod "+shown(string(pod.UID))+" "+name, "pod of the API server is not taken", "pod", name, "error", err)
		return
	}
	have := s.pods[key]
	if have != nil && have.pod.UID != pod.UID {
		s.gone(key)
		have = nil
	}
	if have != nil && !have.kept && have.pod.ResourceVersion == pod.ResourceVersion {
		return
	}
	if have == nil {
		have = &podState{key: key, first: time.Now().Format(time.RFC3339Nano)}
		s.pods[key], s.names[pod.UID] = have, key
	}
	before := have.pod
	if before == nil || toBeKept(before) != toBeKept(pod) || before.Generation != pod.Generation {
		s.urgent()
	}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	have.pod, have.kept = pod, false
	s.cfg.Seen(pod)
	if desired.IsMirror(pod) {
		s.hold(have, nil)
		s.withdraw(have)
		s.cfg.Mirror(key, pod)
		return
	}
	if before != nil && desired.IsMirror(before) {
		s.cfg.Mirror(key, nil)
	}
	if before != nil && asksMore(before, pod) {
		s.objects.readAgain(have)
	}
	refs := s.objects.needs(pod)
	if before == nil {
		s.objects.doubt(refs)
	}
	s.hold(have, refs)
	s.offer(have)
}

// shown is the beginning of a name that may be anything: what is no name may have megabytes.
func shown(name string) string {
	const most = 320 // of a namespace's and a pod's there are so many bytes at most
	if len(name) <= most {
		return name
	}
	return strings.ToValidUTF8(name[:most], "") + "..."
}

// unread tells once of an object that could not be read. Nothing is known of it but that it is there:
// what was known before goes on to count.
func (s *Source) unread(o follow.Object) {
	err, is := o.(error)
	if !is {
		return
	}
	name := shown(o.GetNamespace() + "/" + o.GetName())
	s.once.warn("unread "+name+" "+err.Error(), "object of the API server cannot be read, and is as it was before",
		"object", name, "error", err)
}

// asksMore says whether a pod may need what its objects have now. Most changes are of its status, by this node.
func asksMore(before, now *corev1.Pod) bool {
	return before.Generation != now.Generation || len(before.Status.ResourceClaimStatuses) != len(now.Status.ResourceClaimStatuses)
}

// gone forgets a pod.
func (s *Source) gone(key types.NamespacedName) {
	have := s.pods[key]
	delete(s.pods, key)
	delete(s.names, have.pod.UID)
	s.urgent()
	s.withdraw(have)
	s.hold(have, nil)
	if have.kept {
		return
	}
	if desired.IsMirror(have.pod) {
		s.cfg.Mirror(key, nil)
	}
	s.cfg.Gone(key, have.pod.UID)
}

// withdraw has a pod not be desired.
func (s *Source) withdraw(st *podState) {
	s.settled(st)
	s.queue.put(desired.Update{Kind: object.Pod, Key: st.key}, version{})
}

// offer has a pod be desired, once the server has been asked for what it refers to. One that ends needs nothing.
func (s *Source) offer(st *podState) {
	if len(st.lacks) > 0 && st.pod.DeletionTimestamp == nil {
		s.waiting.begin(st)
		return
	}
	if s.holds(st) {
		return
	}
	s.settled(st)
	s.queue.put(desired.Update{Kind: object.Pod, Key: st.key, Pod: st.desired()}, version{st.pod.UID, st.pod.ResourceVersion})
}

// desired is the pod for this node, which says where it is from. Only the outermost of it is a copy.
func (st *podState) desired() *corev1.Pod {
	out := *st.pod
	out.Annotations = maps.Clone(out.Annotations)
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[desired.AnnotationSource] = string(desired.API)
	out.Annotations[desired.AnnotationSeen] = st.first
	return &out
}

// ours says what is wrong with a pod that the server says is this node's. All that is said of a pod goes by its uid, so
// that the status of a second one of that uid would be the first one's.
func (s *Source) ours(key types.NamespacedName, pod *corev1.Pod) error {
	if err := ours(pod, s.cfg.NodeName); err != nil {
		return err
	}
	if other, has := s.names[pod.UID]; has && other != key {
		return fmt.Errorf("its uid %s is that of pod %s", pod.UID, other)
	}
	return nil
}

// ours says what is wrong with a pod by itself: its names become parts of paths.
func ours(pod *corev1.Pod, node string) error {
	safe := func(c rune) bool {
		return c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	uid := string(pod.UID)
	switch {
	case pod.Spec.NodeName != node:
		return fmt.Errorf("it is bound to node %q", shown(pod.Spec.NodeName))
	case uid == "" || len(uid) > 64 || uid[0] == '-' || strings.ContainsFunc(uid, func(c rune) bool { return !safe(c) }):
		return fmt.Errorf("its uid %q cannot be part of a path", shown(uid))
	case len(validation.IsDNS1123Label(pod.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(pod.Name)) > 0:
		return fmt.Errorf("its name %q in namespace %q is none", shown(pod.Name), shown(pod.Namespace))
	}
	return parts(pod)
}

// parts says what is wrong with the names of what a pod has: they become parts of paths, too, and each is one thing's.
func parts(pod *corev1.Pod) error {
	var containers, volumes []string
	for i := range pod.Spec.InitContainers {
		containers = append(containers, pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		containers = append(containers, pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		containers = append(containers, pod.Spec.EphemeralContainers[i].Name)
	}
	for i := range pod.Spec.Volumes {
		volumes = append(volumes, pod.Spec.Volumes[i].Name)
	}
	for _, names := range [][]string{containers, volumes} {
		seen := map[string]bool{}
		for _, name := range names {
			if seen[name] || len(validation.IsDNS1123Label(name)) > 0 {
				return fmt.Errorf("the name %.100q of a container or volume of it is none, or is there twice", name)
			}
			seen[name] = true
		}
	}
	return nil
}
