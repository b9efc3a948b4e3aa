package node

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"driver":"a.b","handle":"h","name":"n","stage":"/r/plugins/kubernetes.io/csi/a.b/x/globalmount",
		"uses":[{"uid":"u","podDir":"/r/pods/u","name":"n","path":"/r/pods/u/volumes/kubernetes.io~csi/n/mount"}],"expand":{"bytes":1}}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"driver":"a","handle":"h","name":"../..","uses":[{"path":"/r/pods/../etc/x/y/mount"}]}`))
	l := layout{"/r"}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := decode(text, l)
		if err != nil {
			return
		}
		for _, u := range r.Uses {
			if filepath.Clean(u.Path) != u.Path || !strings.HasPrefix(u.Path, "/r/") || filepath.Dir(u.Dir) != "/r/pods" {
				t.Errorf("a use of %q in %q is taken", u.Path, u.Dir)
			}
		}
		if r.Stage != "" && !strings.HasPrefix(r.Stage, "/r/plugins/kubernetes.io/csi/") {
			t.Errorf("the staging path %q is taken", r.Stage)
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(again, l); err != nil {
			t.Errorf("%s cannot be read again: %v", again, err)
		}
	})
}

func FuzzCondition(f *testing.F) {
	f.Add([]byte{0x12, 2, 8, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if c := oldCondition(b); len(c.Message) > maxText || strings.ContainsAny(c.Message, "\n\x1b") || c.Abnormal && !c.Known {
			t.Errorf("got %+v", c)
		}
	})
}

func FuzzMounts(f *testing.F) {
	f.Add("1 2 0:3 / /a\\040b rw - t s rw\n")
	f.Add("1 2 0:3 / /a\\04")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := readMountPoints(strings.NewReader(text))
		if err == nil && len(got) > strings.Count(text, "\n")+1 {
			t.Errorf("got %v", slices.Collect(maps.Keys(got)))
		}
	})
}

// BenchmarkPublish is a directory volume staged and published for a pod; BenchmarkRecord what its record alone takes on
// this disk.
func BenchmarkPublish(b *testing.B) {
	h := newHouse(b)
	h.volume("v")
	r := h.request("a", "v")
	for b.Loop() {
		h.publish(r)
		b.StopTimer()
		must(b, h.Release(b.Context(), h.podDir("a")))
		h.driver.said()
		b.StartTimer()
	}
}

func BenchmarkRecord(b *testing.B) {
	j, err := openJournal(b.TempDir(), "boot")
	must(b, err)
	b.Cleanup(func() { must(b, j.records.Close()) })
	for b.Loop() {
		must(b, j.keep("k", &record{Version: 1, volume: volume{Driver: driverName, Handle: "v", Name: "n"}}))
		b.StopTimer()
		must(b, j.forget("k"))
		b.StartTimer()
	}
}

func BenchmarkAgain(b *testing.B) {
	h := newHouse(b)
	h.volume("v")
	r := h.request("a", "v")
	for b.Loop() {
		h.publish(r)
	}
	must(b, h.Release(b.Context(), h.podDir("a")))
}
