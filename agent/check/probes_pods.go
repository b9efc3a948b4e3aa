package check

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/pod"
)

// Pods asks the agent of this machine for its pods. It returns none where no agent runs.
type Pods func(ctx context.Context) ([]corev1.Pod, error)

const (
	// podsPatience is how long the agent may take to answer.
	podsPatience = 5 * time.Second
	// podsNamed is how many pods are named.
	podsNamed = 5
)

func podProbes() []probe {
	return []probe{{"pods", false, "A pod that cannot be asked goes on as it was, and is neither ended nor replaced until it answers or is removed.", probePods}}
}

// probePods names the pods that the agent leaves as they are because they, or their records, say nothing.
func probePods(ctx context.Context, e *env) answer {
	if e.pods == nil {
		return ok("no agent was asked")
	}
	ctx, cancel := context.WithTimeout(ctx, podsPatience)
	defer cancel()
	all, err := e.pods(ctx)
	if err != nil {
		return limited("the agent cannot be asked: %v", err)
	}
	var silent []string
	for i := range all {
		if p := &all[i]; p.Status.Reason == pod.ReasonNotAnswering {
			silent = append(silent, fmt.Sprintf("%s/%s (%s)", p.Namespace, p.Name, p.Status.Message))
		}
	}
	if len(silent) == 0 {
		return ok("none of %d is silent", len(all))
	}
	more := ""
	if n := len(silent) - podsNamed; n > 0 {
		silent, more = silent[:podsNamed], fmt.Sprintf(", and %d more", n)
	}
	return limited("%s%s", strings.Join(silent, ", "), more)
}
