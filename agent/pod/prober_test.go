package pod

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod/plan"
	"github.com/berth-node/berth/probes"
)

// Whoever hears of a result finds it in the file: an agent that is killed then has a successor that says the same.
func TestProbeResultIsKeptBeforeItIsTold(t *testing.T) {
	n := &node{cfg: Config{RootDir: t.TempDir()}}
	mail := newMailbox()
	p := newProber(n, "u", mail, slog.New(slog.DiscardHandler))
	if err := os.MkdirAll(filepath.Dir(p.file()), 0o755); err != nil {
		t.Fatal(err)
	}
	p.known("c")
	for i := range 300 {
		ok := i%2 == 0
		go p.report(t.Context(), probed{id: "c", spec: &corev1.Container{Name: "web"}}, probes.Readiness, ok)
		<-mail.wake
		var kept map[string]plan.ProbeResults
		data, err := os.ReadFile(p.file())
		if err == nil {
			err = json.Unmarshal(data, &kept)
		}
		if err != nil || (kept["c"].Readiness == plan.ProbePassed) != ok {
			t.Fatalf("result %d is told as %t, kept is %v (%v)", i, ok, kept, err)
		}
	}
}
