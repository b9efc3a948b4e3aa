package check

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod"
)

func TestPodProbe(t *testing.T) {
	silent := func(n int) Pods {
		return func(context.Context) ([]corev1.Pod, error) {
			all := make([]corev1.Pod, 10)
			for i := range all {
				all[i].Namespace, all[i].Name = "default", fmt.Sprint("pod", i)
				if i < n {
					all[i].Status.Reason, all[i].Status.Message = pod.ReasonNotAnswering, "its keeper is stopped"
				}
			}
			return all, nil
		}
	}
	for _, c := range []struct {
		pods Pods
		want Status
		says string
	}{
		{nil, OK, "no agent"},
		{silent(0), OK, "none of 10"},
		{silent(1), Limited, "default/pod0 (its keeper is stopped)"},
		{silent(8), Limited, "default/pod4 (its keeper is stopped), and 3 more"},
		{func(context.Context) ([]corev1.Pod, error) { return nil, errors.New("it hangs") }, Limited, "it hangs"},
		{func(ctx context.Context) ([]corev1.Pod, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("the agent may take as long as it likes")
			}
			return nil, nil
		}, OK, ""},
	} {
		if a := probePods(t.Context(), &env{pods: c.pods}); a.status != c.want || !strings.Contains(a.found, c.says) {
			t.Errorf("got %+v, want %v with %q", a, c.want, c.says)
		}
	}
}
