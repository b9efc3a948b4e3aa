package profile

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// fragile panics before a pod is bound.
type fragile struct{ fwk.PreBindPlugin }

func (fragile) Name() string { return "Fragile" }

func (fragile) PreBind(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	panic("broken")
}

// TestPanicIsNoStack: what is said of a pod is that a plugin has panicked; where is in the log, and for nobody else.
func TestPanicIsNoStack(t *testing.T) {
	var log strings.Builder
	to := slog.New(slog.NewTextHandler(&log, nil))
	status := runPreBinds(t.Context(), to, []fwk.PreBindPlugin{fragile{}}, nil, &corev1.Pod{}, "node")
	if text := status.Message(); !strings.Contains(text, "panic: broken") || strings.Contains(text, "goroutine ") {
		t.Errorf("it is said that %s", text)
	}
	if !strings.Contains(log.String(), "panic_test.go") {
		t.Errorf("the log does not say where: %s", &log)
	}
	log.Reset()
	func() {
		defer func() {
			p := recover()
			if text := fmt.Sprint(p); text != "broken" {
				t.Errorf("it is said that %s", text)
			}
			to.Error("it panics", "error", p)
		}()
		parallelizer{2}.Until(t.Context(), few+1, func(int) { panic("broken") }, "test")
	}()
	if !strings.Contains(log.String(), "panic_test.go") {
		t.Errorf("the log does not say where: %s", &log)
	}
}
