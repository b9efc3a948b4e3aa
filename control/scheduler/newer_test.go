package scheduler

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// olderServer is an API server that has rules which taint devices when it is told to.
type olderServer struct {
	serves atomic.Bool
	status int // of what there is not
}

// ServeHTTP implements [http.Handler].
func (s *olderServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var answer any
	switch {
	case strings.HasSuffix(r.URL.Path, "/v1"):
		list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "resource.k8s.io/v1"}
		list.APIResources = []metav1.APIResource{{Name: "deviceclasses"}}
		if s.serves.Load() {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: "devicetaintrules"})
		}
		answer = list
	case !s.serves.Load():
		w.WriteHeader(s.status)
		reason := metav1.StatusReasonNotFound
		if s.status == http.StatusForbidden {
			reason = metav1.StatusReasonForbidden
		}
		answer = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Code: int32(s.status)}
	case r.URL.Query().Get("watch") != "":
		if r.URL.Query().Get("sendInitialEvents") != "" {
			w.WriteHeader(http.StatusUnprocessableEntity) // as a server that does not know of it
			return
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	default:
		answer = &resourcev1.DeviceTaintRuleList{
			TypeMeta: metav1.TypeMeta{Kind: "DeviceTaintRuleList", APIVersion: "resource.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
			Items: []resourcev1.DeviceTaintRule{{ObjectMeta: metav1.ObjectMeta{Name: "rule", ResourceVersion: "1"}}},
		}
	}
	_ = json.NewEncoder(w).Encode(answer) // who does not hear it has gone
}

// TestNewerKind has a server not have a kind, as one that says so and as one that says that it may not be read: there
// are no objects of it, until the server has it.
func TestNewerKind(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			s := &olderServer{status: status}
			server := httptest.NewServer(s)
			defer server.Close()
			k := newerKinds()[0]
			client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1})
			i := cache.NewSharedIndexInformer(k.from(client, time.Millisecond), k.one, 0, cache.Indexers{})
			added := make(chan any, 1)
			if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) { added <- o }}); err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			defer running.Wait()
			stop := make(chan struct{})
			defer close(stop)
			running.Go(func() { i.Run(stop) })
			if !cache.WaitForCacheSync(stop, i.HasSynced) || len(i.GetStore().List()) > 0 {
				t.Fatal("a kind that is not there has objects")
			}
			s.serves.Store(true)
			if rule, ok := (<-added).(*resourcev1.DeviceTaintRule); !ok || rule.Name != "rule" {
				t.Errorf("%v is heard of", rule)
			}
		})
	}
}

// TestMayNotRead has a server that has the kind not let it be read: that is told.
func TestMayNotRead(t *testing.T) {
	s := &olderServer{status: http.StatusForbidden}
	server := httptest.NewServer(s)
	defer server.Close()
	k := newerKinds()[1]
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1})
	if list, err := k.from(client, time.Millisecond).ListWithContext(t.Context(), metav1.ListOptions{}); err == nil {
		t.Errorf("a kind that may not be read is taken not to be there: %v", list)
	}
}
