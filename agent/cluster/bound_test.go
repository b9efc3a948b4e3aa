package cluster

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestEndlessEvents has a server whose events have no end, however it writes them.
func TestEndlessEvents(t *testing.T) {
	const most = 20 * maxEvent
	begin := `{"type":"ADDED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","annotations":{`
	for _, c := range []struct{ name, kind, piece string }{
		{"a text", "application/json", `"a":"` + strings.Repeat("x", 1000)},
		{"lines", "application/json", `"a":"b",` + "\n"},
		{"a text of lines", "application/json;stream=watch", `"a":"\"} ` + "\n"},
		{"nothing between", "application/json", "\n"},
		{"capitals", "Application/JSON", `"a":"` + strings.Repeat("x", 1000)},
		{"no type", "", `"a":"b",` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			sent := make(chan int, 1)
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n := 0
				defer func() { sent <- n }()
				if w.Header()["Content-Type"] = nil; c.kind != "" {
					w.Header().Set("Content-Type", c.kind)
				}
				text, block := begin, strings.Repeat(c.piece, 1+(64<<10)/len(c.piece))
				if c.piece == "\n" {
					text = `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"1"}}}`
				}
				for ; n < most; n += len(text) {
					if _, err := w.Write([]byte(text)); err != nil {
						return
					}
					text = block
				}
			}))
			defer s.Close()
			client, err := NewClient(&rest.Config{Host: s.URL, QPS: -1})
			if err != nil {
				t.Fatal(err)
			}
			w, err := client.Watch(t.Context(), corev1.SchemeGroupVersion.WithResource("pods"), "", metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			for range w.ResultChan() { // until it ends, since it cannot be read
			}
			if n := <-sent; n >= most {
				t.Errorf("%d bytes are read of an event", n)
			}
		})
	}
}

// TestManyEvents: what a watch says in all is not bounded, nor how events are written.
func TestManyEvents(t *testing.T) {
	const events = 40
	long := strings.Repeat("x", maxEvent/20)
	text := "\n{\n\"type\": \"ADDED\", \"object\": {\"kind\":\"Pod\",\"apiVersion\":\"v1\",\n\"metadata\":{\"name\":\"p\"," +
		"\"annotations\":{\"a\":\"\\\"}{[\\\\\", \"b\":\"" + long + "\"}},\"spec\":{\"containers\":[]}}\n}"
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for range events {
			_, _ = w.Write([]byte(text))
		}
	}))
	defer s.Close()
	client, err := NewClient(&rest.Config{Host: s.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	w, err := client.Watch(t.Context(), corev1.SchemeGroupVersion.WithResource("pods"), "", metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	n := 0
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Annotations["a"] == `"}{[\` && p.Annotations["b"] == long {
			n++
		}
	}
	if n != events {
		t.Errorf("%d events came of %d", n, events)
	}
}
