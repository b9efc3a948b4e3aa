package event

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// keeping runs the ring until what was recorded is in its file.
func keeping(t *testing.T, r *Ring, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx)
	}()
	do()
	cancel()
	<-done
}

func texts(r *Ring) []string {
	var out []string
	for _, e := range r.List() {
		out = append(out, fmt.Sprint(e.InvolvedObject.Kind, " ", e.InvolvedObject.Name, " ", e.InvolvedObject.FieldPath, " ", e.Reason, " ", e.Message, " ", e.Count,
			" ", e.Name, " ", e.UID, " ", e.ResourceVersion, " ", e.FirstTimestamp.UnixNano(), " ", e.LastTimestamp.UnixNano()))
	}
	return out
}

func TestEventsOutliveARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events")
	first, kept := recording(Config{Host: "node", Capacity: 10, File: file})
	keeping(t, kept, func() {
		for i := range 15 {
			first.Event(pod("a"), corev1.EventTypeNormal, fmt.Sprint("Reason", i), "x")
		}
		for range 50 {
			first.Container(pod("b"), "main", corev1.EventTypeWarning, "BackOff", "again")
		}
		first.Node(corev1.EventTypeWarning, "Full", "disk")
	})
	second, again := recording(Config{Host: "node", Capacity: 10, File: file})
	if got, want := texts(again), texts(kept); len(got) != 10 || !reflect.DeepEqual(got, want) {
		t.Errorf("after a restart:\n%s\nbefore:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// What repeats goes on being counted, and nothing gets a name that another has had.
	keeping(t, again, func() {
		second.Container(pod("b"), "main", corev1.EventTypeWarning, "BackOff", "again")
		second.Event(pod("c"), corev1.EventTypeNormal, "New", "x")
	})
	third := NewRing(Config{Capacity: 10, File: file})
	list, names := third.List(), map[string]bool{}
	for _, e := range list {
		names[string(e.UID)] = true
	}
	if e := list[len(list)-3]; e.Count != 51 || len(names) != 10 || list[9].Reason != "New" {
		t.Errorf("%d times, %d names:\n%s", e.Count, len(names), strings.Join(texts(third), "\n"))
	}
}

// A file that was cut off anywhere, or is no such file, costs what of it cannot be read.
func TestTornFileOfEvents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events")
	r, ring := recording(Config{File: file})
	keeping(t, ring, func() {
		for i := range 3 {
			r.Event(pod("a"), corev1.EventTypeNormal, "Reason", "message %d", i)
		}
	})
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if err := os.WriteFile(file, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if got, want := len(NewRing(Config{File: file}).List()), bytes.Count(whole[:n+1], []byte("\n")); got < want-1 || got > want {
			t.Fatalf("%d of %d bytes: %d events, not %d", n, len(whole), got, want)
		}
	}
	for _, bad := range []string{"\x00\x00\x00", strings.Repeat("x", 1<<20), `{"born":-1}`, "[]\nnull\n" + string(whole), `{"born":1,"serial":1,"count":1,"msg":"` + strings.Repeat("y", 4000) + `"}`} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, e := range NewRing(Config{File: file}).List() {
			if len(e.Message) > messageLimit {
				t.Errorf("a message of %d bytes", len(e.Message))
			}
		}
	}
}

// TestDamagedLine: a line that is damaged costs itself alone, however long it is.
func TestDamagedLine(t *testing.T) {
	line := `{"name":"a","uid":"u","type":"Normal","reason":"r","msg":"m","first":1,"last":2,"born":%d,"serial":9,"count":2}` + "\n"
	for _, bad := range []string{"", "{", strings.Repeat("\x00", lineLimit), strings.Repeat("x", 3*lineLimit+7) + fmt.Sprintf(line, 3)} {
		text := fmt.Sprintf(line, 1) + bad + "\n" + fmt.Sprintf(line, 2)
		if entries, err := read(strings.NewReader(text)); len(entries) != 2 || err != nil {
			t.Errorf("%.10q: got %+v, %v", bad, entries, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"name":"a","uid":"u","type":"Normal","reason":"r","msg":"m","first":1,"last":2,"born":1,"serial":2,"count":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		entries, _ := read(bytes.NewReader(data)) // what was read so far counts
		for _, e := range entries {
			if e.Count <= 0 || e.Born <= 0 || len(e.Message) > messageLimit {
				t.Errorf("%+v", e)
			}
		}
	})
}
