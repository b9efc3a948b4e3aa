package check

import "context"

// Membership is how a node and its API server stand to each other.
type Membership struct {
	Phase   string // "": it has none, or no agent runs
	Message string // what is the matter, and what to do
	Server  string
	Serving string // what the certificate of the node's own API waits for
}

// Cluster asks the agent of this machine for that.
type Cluster func(ctx context.Context) (Membership, error)

// joined is the phase of a node that its API server knows.
const joined = "Joined"

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
	case m.Phase != joined:
		return limited("%s %s: %s", m.Server, m.Phase, m.Message)
	case m.Serving != "":
		return limited("%s knows this node, whose own API has no certificate yet: %s", m.Server, m.Serving)
	case m.Message != "":
		return ok("%s knows this node: %s", m.Server, m.Message)
	}
	return ok("%s knows this node", m.Server)
}
