package pressure

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-node/berth/eviction"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// damages are what a file may be after a disk has failed, and what somebody may have made of it.
func damages(t *testing.T, data []byte) map[string][]byte {
	t.Helper()
	const seed = 1
	random := rand.New(rand.NewPCG(seed, seed))
	out := map[string][]byte{
		"empty": {}, "zeros": make([]byte, len(data)), "null": []byte("null"), "of nulls": []byte("[null,null]"),
		"another kind": []byte(`{"a":[1]}`), "a number": []byte("7"), "twice": slices.Concat(data, data),
	}
	for i := range 400 {
		torn := data[:random.IntN(len(data))]
		out[fmt.Sprint("torn ", i)] = torn
		flipped := bytes.Clone(data)
		for range 1 + i%3 {
			flipped[random.IntN(len(data))] ^= 1 << random.IntN(8)
		}
		out[fmt.Sprint("flipped ", i)] = flipped
	}
	return out
}

// TestDamagedRecords: whatever the files are damaged to, a node starts, says of itself what it can say, and goes on.
// What cannot be read is put aside, and nothing of it is believed.
func TestDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	w := &world{}
	c := Config{
		Pods: w, Groups: w, Images: w, Events: w, Dead: w, Again: func() {}, Transition: time.Minute, RootDir: "/", ImageDir: "/",
		File: filepath.Join(dir, "evictions.json"), Held: filepath.Join(dir, "conditions.json"), Log: slog.New(slog.DiscardHandler),
	}
	decision := eviction.Decision{
		Time: time.Now(), Signal: signal.NodeFsAvailable, Threshold: "nodefs.available<10%", Pod: eviction.Name{UID: "a", Name: "a"},
		Ranked: []rank.Line{{Place: 1, Pod: rank.Pod{UID: "a", Known: true, Usage: 7}, Figures: "usage 7"}},
	}
	held := eviction.Conditions{{Type: corev1.NodeDiskPressure, Status: true, Since: time.Now(), Last: time.Now()}}
	n := New(c)
	n.Decided(decision)
	n.Decided(decision)
	n.Wait()
	n.Conditions(held)
	n.Seen(held)
	whole := map[string][]byte{}
	for _, file := range []string{c.File, c.Held} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		whole[file] = data
	}
	for file, data := range whole {
		for what, damaged := range damages(t, data) {
			for each, data := range whole {
				if each == file {
					data = damaged
				}
				if err := os.WriteFile(each, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			os.Remove(c.File + ".bad")
			n := New(c)
			for _, of := range n.Holding() {
				if of != corev1.NodeDiskPressure && of != corev1.NodeMemoryPressure && of != corev1.NodePIDPressure {
					t.Errorf("%s %s: the node has condition %q: %s", filepath.Base(file), what, of, damaged)
				}
			}
			kept := len(n.history.all())
			if _, err := os.Stat(c.File + ".bad"); (err == nil) != (kept == 0) && string(damaged) != "null" {
				t.Errorf("%s %s: %d decisions are known, and put aside: %v", filepath.Base(file), what, kept, err)
			}
			n.Decided(eviction.Decision{Signal: signal.MemoryAvailable, Pod: eviction.Name{UID: types.UID("new")}})
			n.Wait()
			if all := New(c).history.all(); len(all) == 0 || len(all) > kept+1 || all[len(all)-1].Pod.UID != "new" {
				t.Errorf("%s %s: of %d decisions and one there are %d", filepath.Base(file), what, kept, len(all))
			}
		}
	}
}
