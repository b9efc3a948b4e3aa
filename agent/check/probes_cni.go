package check

import (
	"context"

	"github.com/berth-node/berth/agent/config"
)

// podNetworkProbes are of which network pods get.
func podNetworkProbes() []probe {
	return []probe{{
		"pod network", false,
		"Pods get the network built in, not that of the configuration; --network cni takes it.", func(context.Context, *env) answer {
			return podNetwork(config.Default().Embedded)
		},
	}}
}

func podNetwork(e config.Embedded) answer {
	n := e.PodNetwork(config.Alone)
	if n.Passed != "" {
		return limited("--network %s: %s, since %s; %s is not used", e.Network, n.Kind, n.Why, n.Passed)
	}
	return ok("--network %s: %s, since %s", e.Network, n.Kind, n.Why)
}
