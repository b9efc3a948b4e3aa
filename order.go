package main

import (
	"github.com/berth-node/berth/cgroups/inspect"
	"github.com/berth-node/berth/eviction/rank"
	"github.com/berth-node/berth/eviction/signal"
)

// evictionOrder is the agent's order for want of memory, for who shows groups and knows nothing of eviction.
func evictionOrder(pods []inspect.Pod) []inspect.Place {
	ranked := make([]rank.Pod, 0, len(pods))
	for _, p := range pods {
		ranked = append(ranked, rank.Pod{
			UID: p.UID, Namespace: p.Namespace, Name: p.Name, QOS: p.QOS, Priority: p.Priority, Protected: p.Protected, Known: p.Known,
			Usage: p.Usage, Request: p.Request,
		})
	}
	lines := rank.Explain(ranked, signal.MemoryAvailable)
	out := make([]inspect.Place, 0, len(lines))
	for i := range lines {
		p := &lines[i].Pod
		out = append(out, inspect.Place{Number: lines[i].Place, Before: lines[i].Before, Pod: inspect.Pod{
			UID: p.UID, Namespace: p.Namespace, Name: p.Name, QOS: p.QOS, Priority: p.Priority, Protected: p.Protected, Known: p.Known,
			Usage: p.Usage, Request: p.Request,
		}})
	}
	return out
}
