package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-node/berth/agent/desired"
)

func (s *Server) listPods(w http.ResponseWriter, r *http.Request) error {
	ns := r.FormValue("namespace")
	if wants(r, "watch") {
		return stream(w, r, s.cfg.Pods, func(p *corev1.Pod) any {
			if ns != "" && p.Namespace != ns {
				return nil
			}
			return typed(p)
		})
	}
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []corev1.Pod{}}
	for _, p := range s.cfg.Pods.List() {
		if ns == "" || p.Namespace == ns {
			list.Items = append(list.Items, *p)
		}
	}
	slices.SortFunc(list.Items, func(a, b corev1.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return writeJSON(w, list)
}

// typed returns a shallow copy of the pod that says what it is, as an object outside a list does.
func typed(p *corev1.Pod) *corev1.Pod {
	q := *p
	q.TypeMeta = metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}
	return &q
}

// lookup finds the pods that requests are about.
type lookup struct{ feed Feed[*corev1.Pod] }

func (l lookup) find(r *http.Request) (*corev1.Pod, error) {
	ns, name := r.PathValue("ns"), r.PathValue("pod")
	for _, p := range l.feed.List() {
		if uid := r.PathValue("uid"); p.Namespace == ns && p.Name == name && (uid == "" || uid == string(p.UID)) {
			return p, nil
		}
	}
	return nil, notFound("pods %q not found in namespace %s", name, ns)
}

func (s *Server) file(p *corev1.Pod) string {
	if s.cfg.File == nil {
		return ""
	}
	return s.cfg.File(types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
}

func (s *Server) getPod(w http.ResponseWriter, r *http.Request) error {
	p, err := s.pods.find(r)
	if err != nil {
		return err
	}
	if f := s.file(p); f != "" {
		w.Header().Set(ManifestHeader, f)
	}
	return writeJSON(w, typed(p))
}

// deletePod always refuses: the manifests and the API server say which pods run, and the agent never changes them.
func (s *Server) deletePod(w http.ResponseWriter, r *http.Request) error {
	p, err := s.pods.find(r)
	if err != nil {
		return err
	}
	msg := "pod " + p.Namespace + "/" + p.Name
	switch f := s.file(p); {
	case !desired.RulesOf(p).Manifest:
		msg += " is a pod of the API server: delete it there"
	case f == "":
		msg += " is a static pod and is being removed already: no manifest asks for it any more"
	default:
		w.Header().Set(ManifestHeader, f)
		msg += " is a static pod: it runs as long as its manifest is there; remove it from " + f
	}
	return &failure{http.StatusConflict, metav1.StatusReasonConflict, msg}
}

func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	ns, uid := r.FormValue("namespace"), types.UID(r.FormValue("uid"))
	wanted := func(e *corev1.Event) bool {
		return (ns == "" || e.Namespace == ns) && (uid == "" || e.InvolvedObject.UID == uid)
	}
	if wants(r, "watch") {
		return stream(w, r, s.cfg.Events, func(e *corev1.Event) any {
			if !wanted(e) {
				return nil
			}
			f := *e
			f.TypeMeta = metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}
			return &f
		})
	}
	list := corev1.EventList{TypeMeta: metav1.TypeMeta{Kind: "EventList", APIVersion: "v1"}, Items: []corev1.Event{}}
	for _, e := range s.cfg.Events.List() {
		if wanted(e) {
			list.Items = append(list.Items, *e)
		}
	}
	slices.SortStableFunc(list.Items, func(a, b corev1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return writeJSON(w, list)
}

func (s *Server) problems(w http.ResponseWriter, r *http.Request) error {
	p := []Problem{}
	if s.cfg.Problems != nil {
		p = append(p, s.cfg.Problems()...)
	}
	return writeJSON(w, p)
}

func (s *Server) cluster(w http.ResponseWriter, _ *http.Request) error {
	return writeJSON(w, s.cfg.Node.Cluster())
}

func (s *Server) timing(w http.ResponseWriter, r *http.Request) error {
	p, err := s.pods.find(r)
	if err != nil {
		return err
	}
	if s.cfg.Timing != nil {
		if span := s.cfg.Timing(p.UID); span != nil {
			return writeJSON(w, span)
		}
	}
	return notFound("the start of pod %s is not on record: it was before this agent's", p.Name)
}

// stream writes the feed as JSON lines, each a watch event with what object makes of it; nil leaves it out.
func stream[T any](w http.ResponseWriter, r *http.Request, feed Feed[T], object func(T) any) error {
	type event struct {
		Type   watch.EventType `json:"type"`
		Object any             `json:"object"`
	}
	// The answer's head says that the watch has begun, so it has to have: what went between would never be told.
	follow := feed.Subscribe()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	_ = flush.Flush() // of one who has gone, the request's context tells
	enc := json.NewEncoder(w)
	return follow(r.Context(), func(t watch.EventType, v T) error {
		o := object(v)
		if o == nil {
			return nil
		}
		if err := enc.Encode(event{t, o}); err != nil {
			return err
		}
		return flush.Flush()
	})
}

func wants(r *http.Request, name string) bool {
	v := r.FormValue(name)
	if v == "" {
		return false
	}
	b, err := strconv.ParseBool(v)
	return err == nil && b
}

func writeJSON(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(v)
}
