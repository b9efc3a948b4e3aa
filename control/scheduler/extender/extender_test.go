package extender

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-node/berth/control/scheduler/cluster/clustertest"
)

// TestNonsense has an extender answer what makes no sense: it is an error, which names the extender.
func TestNonsense(t *testing.T) {
	for name, c := range map[string]struct{ verb, answer string }{
		"no answer": {"filter", ""}, "no JSON": {"filter", "<html>"}, "another type": {"filter", "[1]"},
		"a node that is not asked about": {"filter", `{"nodenames": ["other"]}`}, "an error": {"filter", `{"error": "no"}`},
		"a number as scores": {"prioritize", "1"}, "a score beyond any": {"prioritize", `[{"host": "n", "score": 1e400}]`},
		"victims that are null": {"preempt", `{"nodeNameToMetaVictims": {"n": null}}`}, "no such victim": {"preempt", `{"nodeNameToMetaVictims": {"n": {"pods": [{"uid": "x"}]}}}`},
		"a victim that is null": {"preempt", `{"nodeNameToMetaVictims": {"n": {"pods": [null]}}}`}, "no such node": {"preempt", `{"nodeNameToMetaVictims": {"x": {}}}`},
		"hangs": {"filter", "hang"},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			defer close(gone)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.answer == "hang" {
					select {
					case <-gone:
					case <-r.Context().Done():
					}
				}
				fmt.Fprint(w, c.answer)
			}))
			t.Cleanup(server.Close)
			e, err := New(configv1.Extender{
				URLPrefix: server.URL, FilterVerb: "filter", PrioritizeVerb: "prioritize", PreemptVerb: "preempt", NodeCacheCapable: true,
				HTTPTimeout: metav1.Duration{Duration: time.Second},
			})
			if err != nil {
				t.Fatal(err)
			}
			snapshot := clustertest.Snapshot(nil, []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n"}}})
			nodes, err := snapshot.NodeInfos().List()
			if err != nil {
				t.Fatal(err)
			}
			if err = ask(e, c.verb, nodes, snapshot.NodeInfos()); err == nil || !strings.Contains(err.Error(), server.URL) {
				t.Errorf("error: %v", err)
			}
		})
	}
}

// TestSilent has an extender that can be done without not answer: the pods that follow do not wait for it.
func TestSilent(t *testing.T) {
	asked := make(chan struct{}, 100)
	gone := make(chan struct{})
	defer close(gone)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		select {
		case <-gone:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(server.Close)
	for _, needed := range []bool{false, true} {
		e, err := New(configv1.Extender{
			URLPrefix: server.URL, FilterVerb: "filter", PrioritizeVerb: "prioritize", Ignorable: !needed, NodeCacheCapable: true,
			HTTPTimeout: metav1.Duration{Duration: 200 * time.Millisecond},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			for _, verb := range []string{"filter", "prioritize"} {
				if ask(e, verb, nil, nil) == nil {
					t.Errorf("%s: no error", verb)
				}
			}
		}
		want := 1
		if needed {
			want = 3 // to filter; how nodes compare is passed over
		}
		if n := len(asked); n != want {
			t.Errorf("needed: %t: it is asked %d times, want %d", needed, n, want)
		}
		for len(asked) > 0 {
			<-asked
		}
	}
}

func ask(e *Extender, verb string, nodes []fwk.NodeInfo, lister fwk.NodeInfoLister) (err error) {
	pod := &corev1.Pod{}
	switch verb {
	case "filter":
		_, _, _, err = e.Filter(pod, nodes)
	case "prioritize":
		_, _, err = e.Prioritize(pod, nodes)
	case "preempt":
		_, err = e.ProcessPreemption(pod, map[string]*extenderv1.Victims{}, lister)
	}
	return err
}
