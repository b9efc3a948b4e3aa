package agent

import (
	"context"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-node/berth/agent/api/socket"
	"github.com/berth-node/berth/agent/desired"
	"github.com/berth-node/berth/agent/event"
	"github.com/berth-node/berth/agent/object"
	"github.com/berth-node/berth/agent/source"
)

// pass hands on what the manifests and the API server ask for, and keeps which file asks for what. cluster is nil where
// there is no API server. The agent is ready when the manifests have been read: the API server may be one of their
// pods.
func (a *Agent) pass(ctx context.Context, manifests, cluster <-chan desired.Update, out chan<- desired.Update) {
	var both source.Both
	if cluster == nil {
		both.Add(desired.Update{Synced: true}, true)
	}
	for {
		var u desired.Update
		remote := false
		select {
		case <-ctx.Done():
			return
		case u = <-manifests:
		case u = <-cluster:
			remote = true
		}
		if !remote && !u.Synced && u.Kind == object.Pod {
			a.manifests.files.set(u)
		}
		for _, next := range both.Add(u, remote) {
			select {
			case <-ctx.Done():
				return
			case out <- next:
			}
		}
		if remote && u.Pod != nil && both.Waits(u.Key) {
			a.member.nameTaken(u.Pod, a.events)
		}
		if u.Synced && !remote {
			a.manifestsRead()
		}
	}
}

// nameTaken says that a pod of the API server waits for a static one of its name. There is nothing of it here, so that
// it is gone as soon as it is deleted.
func (m *member) nameTaken(pod *corev1.Pod, events *event.Recorder) {
	if pod.DeletionTimestamp != nil {
		m.statuses.Delete(pod)
		return
	}
	events.Event(pod, corev1.EventTypeWarning, "NameTaken",
		"A static pod of this node has the name %s/%s: this pod starts when that one's manifest goes", pod.Namespace, pod.Name)
}

// manifestsRead says that the agent is ready, once.
func (a *Agent) manifestsRead() {
	if a.synced.Swap(true) {
		return
	}
	a.log.Info("agent is ready", "manifests", a.cfg.ManifestDir, "api", filepath.Join(a.cfg.RunDir, socket.Name))
	if a.cfg.Ready != nil {
		a.cfg.Ready()
	}
	close(a.read)
}
