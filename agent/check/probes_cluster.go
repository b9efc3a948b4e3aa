package check

import (
	"context"

	"github.com/berth-node/berth/agent/cluster"
)

// Cluster asks the agent of this machine how it and its API server stand to each other. The phase is empty where there
// is none, or no agent runs.
type Cluster func(ctx context.Context) (cluster.State, error)

func clusterProbes() []probe {
	return []probe{{"API server", false, "Pods go on as they are, and nothing new is heard of.", probeCluster}}
}

// probeCluster says how the agent stands to its API server.
func probeCluster(ctx context.Context, e *env) answer {
	if e.cluster == nil {
		return ok("no agent was asked")
	}
	ctx, cancel := context.WithTimeout(ctx, podsPatience)
	defer cancel()
	m, err := e.cluster(ctx)
	switch {
	case err != nil:
		return limited("the agent cannot be asked: %v", err)
	case m.Phase == "":
		return ok("none: the node is its own")
	case m.Phase != cluster.Joined:
		return limited("%s %s: %s", m.Server, m.Phase, m.Message)
	case m.Serving != "":
		return limited("%s knows this node, whose own API has no certificate yet: %s", m.Server, m.Serving)
	case m.Message != "":
		return ok("%s knows this node: %s", m.Server, m.Message)
	}
	return ok("%s knows this node", m.Server)
}
