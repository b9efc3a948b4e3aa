package control

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-node/berth/test/history"
)

// answerLimit bounds one request. What has no answer by then may have happened, or may still.
const answerLimit = 5 * time.Second

// TestKills kills the control plane at random moments under writes, and asks then of the history of each object whether
// one order of its operations explains all answers, and of a watch that goes on where it was cut off whether it has
// heard of each write once. BERTH_CONTROL_KILLS is how often; the plane lives longer then, as it is slow at first.
func TestKills(t *testing.T) {
	t.Parallel()
	kills, lives := 5, 1500*time.Millisecond
	if text := os.Getenv("BERTH_CONTROL_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		lives = 8 * time.Second
	}
	dir := t.TempDir()
	p := startAt(t, dir, "0")
	port := p.port(t)
	// In the form that nodes have, which takes half of what JSON takes of the test's own time.
	fast := rest.CopyConfig(p.config)
	fast.ContentType = runtime.ContentTypeProtobuf
	h := history.Begin(t, kubernetes.NewForConfigOrDie(fast), ns, history.Limits{Writers: 96, Answer: answerLimit, Era: 2 * time.Second, Patience: patience})
	for range kills {
		pause(t.Context(), rand.N(lives))
		p.kill()
		next := startAt(t, dir, port)
		p.cmd, p.ended = next.cmd, next.ended
	}
	pause(t.Context(), time.Second)
	h.End(t)
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
