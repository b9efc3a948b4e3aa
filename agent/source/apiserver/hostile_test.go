package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/agent/cluster"
)

// eventOf is an event as a watch has it in JSON.
func eventOf(kind string, o metav1.Object) string {
	text, err := json.Marshal(map[string]any{"type": kind, "object": o})
	if err != nil {
		return err.Error()
	}
	return string(text) + "\n"
}

func jsonPod(name, version string) *corev1.Pod {
	p := podOn("node1", name, "u-"+name, envFrom("a"))
	p.APIVersion, p.Kind, p.ResourceVersion = "v1", "Pod", version
	return p
}

func bookmark(kind, version string) string {
	return `{"type":"BOOKMARK","object":{"kind":"` + kind + `","apiVersion":"v1","metadata":{"resourceVersion":"` + version +
		`","annotations":{"` + metav1.InitialEventsAnnotationKey + `":"true"}}}}` + "\n"
}

// hostile follows a server that answers watches on pods and ConfigMaps so, with the client that the agent has.
func hostile(t *testing.T, pods, maps http.HandlerFunc, change func(*Config)) *consumer {
	t.Helper()
	return served(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods") {
			pods(w, r)
			return
		}
		if r.URL.Query().Get("watch") == "" {
			http.NotFound(w, r)
			return
		}
		maps(w, r)
	}, change)
}

// served follows a server of JSON.
func served(t *testing.T, serve http.HandlerFunc, change func(*Config)) *consumer {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		serve(w, r)
	}))
	t.Cleanup(server.Close)
	client, err := cluster.NewClient(&rest.Config{Host: server.URL, QPS: -1, Transport: &http.Transport{DisableKeepAlives: true}})
	if err != nil {
		t.Fatal(err)
	}
	return consume(t, client, change)
}

// stay keeps a watch open until its client goes.
func stay(w http.ResponseWriter, r *http.Request, text ...string) {
	for _, one := range text {
		fmt.Fprint(w, one)
	}
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func noMaps(w http.ResponseWriter, r *http.Request) { stay(w, r, bookmark("ConfigMap", "5")) }

// TestHalfAnswers cuts every answer at another byte.
func TestHalfAnswers(t *testing.T) {
	text := eventOf("ADDED", jsonPod("p", "4")) + bookmark("Pod", "5")
	var at atomic.Int64
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if n := int(at.Add(23)); n < len(text) {
			fmt.Fprint(w, text[:n])
			return
		}
		stay(w, r, text)
	}, noMaps, nil)
	c.waitPod("p", "u-p")
	c.waitSynced()
}

// TestNonsense: what is no event, and no pod, ends a watch and nothing else.
func TestNonsense(t *testing.T) {
	var at atomic.Int64
	nonsense := []string{
		"<html>", "\x00\x01\x02", "{}\n", `{"type":"ADDED","object":{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}}` + "\n",
		`{"type":"ADDED","object":{"kind":"Nothing","apiVersion":"v9"}}` + "\n", `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410}}` + "\n",
		`{"type":"MODIFIED","object":null}` + "\n", `{"type":"WHAT","object":{"kind":"Pod","apiVersion":"v1"}}` + "\n",
	}
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if n := int(at.Add(1)) - 1; n < len(nonsense) {
			fmt.Fprint(w, nonsense[n])
			return
		}
		stay(w, r, eventOf("ADDED", jsonPod("p", "4")), bookmark("Pod", "5"))
	}, noMaps, nil)
	c.waitPod("p", "u-p")
	c.waitSynced()
	if len(c.pods) != 1 {
		t.Errorf("%v", c.pods)
	}
}

// TestFrozen: a server that takes a question and says nothing is given up, and asked again.
func TestFrozen(t *testing.T) {
	var at atomic.Int64
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch at.Add(1) {
		case 1:
			<-r.Context().Done() // no answer at all
		case 2:
			stay(w, r, eventOf("ADDED", jsonPod("p", "4"))) // and never that this was all
		default:
			stay(w, r, eventOf("ADDED", jsonPod("p", "4")), bookmark("Pod", "5"))
		}
	}, noMaps, func(cfg *Config) { cfg.pace.follow.Open = 50 * time.Millisecond })
	c.waitPod("p", "u-p")
	if c.logs.count("the server says nothing") == 0 {
		t.Error("it is not said")
	}
}

// TestHugeAnswers: an object of 100 MB, and pods without end, do not take the memory of the node.
func TestHugeAnswers(t *testing.T) {
	var events, huge atomic.Int64
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		if events.Add(1) == 1 {
			for i := 0; r.Context().Err() == nil; i++ {
				if _, err := fmt.Fprint(w, eventOf("ADDED", jsonPod(fmt.Sprintf("p%d", i), "4"))); err != nil {
					return
				}
			}
			return
		}
		stay(w, r, eventOf("ADDED", jsonPod("p", "4")), bookmark("Pod", "5"))
	}, func(w http.ResponseWriter, r *http.Request) {
		huge.Add(1)
		fmt.Fprint(w, `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"data":{"k":"`)
		block := strings.Repeat("x", 1<<20)
		for range 100 {
			if _, err := fmt.Fprint(w, block); err != nil {
				return
			}
		}
		fmt.Fprint(w, `"}}}`+"\n")
	}, func(cfg *Config) { cfg.pace.answer = 100 * time.Millisecond })
	var peak, now runtime.MemStats
	runtime.ReadMemStats(&peak)
	c.waitPod("p", "u-p")
	for huge.Load() < 2 {
		time.Sleep(time.Millisecond)
		runtime.ReadMemStats(&now)
		peak.HeapAlloc = max(peak.HeapAlloc, now.HeapAlloc)
	}
	if peak.HeapAlloc > 256<<20 {
		t.Errorf("%d MB are taken", peak.HeapAlloc>>20)
	}
	if c.logs.count("more than 10000") == 0 || len(c.pods) != 1 || len(c.objects) != 0 {
		t.Errorf("%d pods, %d objects, and nobody says why", len(c.pods), len(c.objects))
	}
	t.Logf("%d MB at most", peak.HeapAlloc>>20)
}

// TestUnreadable has a pod whose numbers take for ever, and others that are none, among good ones: of those everything
// is heard, a pod that has become one of them stays as it was, and one that is good at last is taken.
func TestUnreadable(t *testing.T) {
	bad := func(kind, name, version, field, by string) string {
		p := jsonPod(name, version)
		p.Spec.NodeSelector = map[string]string{"here": "is"}
		return strings.Replace(eventOf(kind, p), `"nodeSelector":{"here":"is"}`, `"`+field+`":`+by, 1)
	}
	const costly = `{"cpu":"1e-999999999"}`
	good := make(chan struct{})
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		for _, text := range []string{
			bad("ADDED", "costly", "3", "overhead", costly), bad("ADDED", "odd", "3", "overhead", `{"cpu":"a lot"}`),
			bad("ADDED", "large", "3", "priority", "9223372036854775808"), bad("ADDED", "text", "3", "volumes", `"none"`),
			eventOf("ADDED", jsonPod("p", "4")), bookmark("Pod", "5"), bad("MODIFIED", "p", "6", "overhead", costly),
			eventOf("ADDED", jsonPod("q", "7")),
		} {
			fmt.Fprint(w, text)
		}
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
		case <-good:
			stay(w, r, eventOf("MODIFIED", jsonPod("odd", "8")), eventOf("DELETED", jsonPod("costly", "9")))
		}
	}, noMaps, nil)
	c.waitPod("p", "u-p")
	c.waitPod("q", "u-q")
	c.waitSynced()
	for _, name := range []string{"costly", "odd", "large", "text", "p"} {
		if what := `default/` + name; c.logs.count(what) == 0 {
			t.Errorf("it is not said that %s cannot be read", what)
		}
	}
	if c.logs.count("spec.overhead[cpu]") == 0 || len(c.pods) != 2 {
		t.Errorf("%d pods are known, and the field is not named", len(c.pods))
	}
	close(good)
	c.waitPod("odd", "u-odd")
}

// TestUnreadableInList has such a pod in the list of a server that streams nothing: the others are taken, one that has
// become so stays as it was, and one that is no more in the list is gone.
func TestUnreadableInList(t *testing.T) {
	var lists atomic.Int64
	list := func(version string, pods ...string) string {
		return `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"` + version + `"},"items":[` + strings.Join(pods, ",") + `]}`
	}
	good := func(name, version string) string {
		text, err := json.Marshal(jsonPod(name, version))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	bad := func(name, version string) string {
		return strings.Replace(good(name, version), `"nodeName"`, `"overhead":{"cpu":"1e-999999999"},"nodeName"`, 1)
	}
	again := make(chan struct{})
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		watches := r.URL.Query().Get("watch") != ""
		switch {
		case watches && r.URL.Query().Get("sendInitialEvents") != "":
			http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
		case watches && r.URL.Query().Get("resourceVersion") == "5":
			select {
			case <-r.Context().Done():
			case <-again:
				fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410}}`+"\n")
			}
		case watches:
			stay(w, r)
		case lists.Add(1) == 1:
			fmt.Fprint(w, list("5", good("p", "2"), bad("q", "3"), good("r", "4")))
		default:
			fmt.Fprint(w, list("9", bad("p", "8"), good("q", "7")))
		}
	}, noMaps, nil)
	c.waitPod("p", "u-p")
	c.waitPod("r", "u-r")
	c.waitSynced()
	if len(c.pods) != 2 || c.logs.count("default/q") == 0 || c.logs.count("spec.overhead[cpu]") == 0 {
		t.Errorf("%d pods are known, and the other is not named", len(c.pods))
	}
	close(again)
	c.waitPod("q", "u-q")
	c.waitPod("r", "")
	if p := c.waitPod("p", "u-p"); p.ResourceVersion != "2" || c.logs.count("default/p") == 0 {
		t.Errorf("a pod that has become one is of version %s", p.ResourceVersion)
	}
}

// TestUnreadableObject: an object that cannot be read costs the pod no more than its wait for it.
func TestUnreadableObject(t *testing.T) {
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		stay(w, r, eventOf("ADDED", jsonPod("p", "4")), bookmark("Pod", "5"))
	}, func(w http.ResponseWriter, r *http.Request) {
		stay(w, r, `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default"},"data":7}}`+"\n",
			bookmark("ConfigMap", "5"))
	}, nil)
	c.waitPod("p", "u-p")
	if c.logs.count("default/a") == 0 || len(c.objects) != 0 {
		t.Errorf("%d objects are known, and nobody says why", len(c.objects))
	}
}

// TestEmptyAnswers has a server that answers for objects with any JSON, with one of another kind and with one that no
// server has: the pod begins without them, what was known of one stays, and what is good at last is taken.
func TestEmptyAnswers(t *testing.T) {
	pod := jsonPod("p", "4")
	envFrom("b")(pod)
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"},
	}}}
	good, claims := make(chan struct{}), atomic.Int64{}
	c := served(t, func(w http.ResponseWriter, r *http.Request) {
		named := r.URL.Query().Get("fieldSelector")
		nothing := `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","namespace":"default","resourceVersion":"8"}}`
		secret := `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"b","namespace":"default","uid":"u","resourceVersion":"8"}}`
		b := configMap("b", "1")
		b.Kind, b.APIVersion, b.ResourceVersion = "ConfigMap", "v1", "3"
		switch {
		case strings.HasSuffix(r.URL.Path, "/pods"):
			stay(w, r, eventOf("ADDED", pod), bookmark("Pod", "5"))
		case strings.Contains(r.URL.Path, "/persistentvolumeclaims/"):
			claims.Add(1)
			fmt.Fprint(w, `{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c","namespace":"default","uid":"u"}}`)
		case r.URL.Query().Get("watch") == "":
			fmt.Fprint(w, `{}`)
		case named == "metadata.name=b":
			stay(w, r, eventOf("ADDED", b), bookmark("ConfigMap", "5"), `{"type":"MODIFIED","object":`+secret+"}\n",
				`{"type":"DELETED","object":`+strings.Replace(secret, `"8"`, `"9"`, 1)+"}\n")
		default:
			fmt.Fprint(w, bookmark("ConfigMap", "5"), `{"type":"ADDED","object":`+nothing+"}\n")
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-good:
			}
			a := configMap("a", "1")
			a.Kind, a.APIVersion, a.ResourceVersion = "ConfigMap", "v1", "9"
			stay(w, r, eventOf("ADDED", a))
		}
	}, func(cfg *Config) { cfg.pace.answer = 100 * time.Millisecond })
	c.waitPod("p", "u-p")
	c.wait("it is said", func() bool { return c.logs.count("something else than an object") == 3 })
	c.mu.Lock()
	if b, is := c.objects[cm("b")].(*corev1.ConfigMap); len(c.objects) != 1 || !is || b.Data["k"] != "1" {
		t.Errorf("known are %v", c.objects)
	}
	c.mu.Unlock()
	close(good)
	c.wait("what is good", func() bool { return c.objects[cm("a")] != nil && claims.Load() > 1 })
	if c.objects[cm("b")] == nil {
		t.Error("what was known of another is lost")
	}
}

// TestLongNames: names of a megabyte are not told as a whole, and the pods are not taken.
func TestLongNames(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		uid, node, name := jsonPod("a", "1"), jsonPod("b", "2"), jsonPod(long, "3")
		uid.UID, node.Spec.NodeName, name.UID = types.UID(long), long, "u"
		stay(w, r, eventOf("ADDED", uid), eventOf("ADDED", node), eventOf("ADDED", name), eventOf("ADDED", jsonPod("p", "4")), bookmark("Pod", "5"))
	}, noMaps, nil)
	c.waitPod("p", "u-p")
	if n := c.logs.count("is not taken"); n != 3 || c.logs.count("x") > 10_000 || len(c.pods) != 1 {
		t.Errorf("%d pods are not taken, with %d bytes of names, and %d are", n, c.logs.count("x"), len(c.pods))
	}
}

// TestNoList: a server, or who answers for it, that has an odd word for a list does not end pods by that.
func TestNoList(t *testing.T) {
	var watches, lists atomic.Int64
	c := hostile(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("watch") == "":
			lists.Add(1)
			fmt.Fprint(w, `{"ok":true}`)
		case watches.Add(1) == 1:
			fmt.Fprint(w, eventOf("ADDED", jsonPod("p", "4")), bookmark("Pod", "5"), `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410}}`+"\n")
		case lists.Load() < 3:
			http.Error(w, `{}`, http.StatusBadRequest)
		default:
			stay(w, r, eventOf("ADDED", jsonPod("p", "4")), eventOf("ADDED", jsonPod("q", "5")), bookmark("Pod", "6"))
		}
	}, noMaps, nil)
	c.waitPod("p", "u-p")
	c.waitPod("q", "u-q")
	if c.logs.count("has no version") == 0 || slices.Contains(c.history, "-p") {
		t.Errorf("nobody says why, or the pod was gone: %q", c.history)
	}
}
