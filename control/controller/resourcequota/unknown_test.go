package resourcequota

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// served is what is served, and how often it was asked for.
type served struct {
	discovery.ServerResourcesInterface

	lists []*metav1.APIResourceList
	asked int
}

func (s *served) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	s.asked++
	return s.lists, nil
}

// TestUnknown has a thousand quotas name what is not served: it is asked for once in a while for all of them, and found
// when it is.
func TestUnknown(t *testing.T) {
	d := &served{}
	now := time.Unix(1e9, 0)
	c := &counter{
		deps: Deps{Discovery: d}, kinds: map[schema.GroupResource]schema.GroupVersionResource{}, now: func() time.Time { return now },
	}
	of := schema.GroupResource{Group: "example.com", Resource: "things"}
	for range 1000 {
		if r, err := c.resource(of); err == nil {
			t.Fatalf("it is %v", r)
		}
	}
	if d.asked != 1 {
		t.Errorf("it is asked for %d times", d.asked)
	}
	d.lists = []*metav1.APIResourceList{{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{{Name: "things"}}}}
	now = now.Add(learnAgain)
	if r, err := c.resource(of); err != nil || r != of.WithVersion("v2") {
		t.Errorf("it is %v, %v", r, err)
	}
	// Another version of it is served then, and a list of the one before says so.
	d.lists[0].GroupVersion = "example.com/v3"
	c.forget(of.WithVersion("v2"))
	now = now.Add(learnAgain)
	if r, err := c.resource(of); err != nil || r != of.WithVersion("v3") {
		t.Errorf("it is %v, %v", r, err)
	}
}
