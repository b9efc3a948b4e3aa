package profile

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// signers are the plugins that say what of a pod counts for where it may be and where it is better off; none, if one of
// those that have a say in that does not.
func signers(p *points) []fwk.SignPlugin {
	var all []fwk.SignPlugin
	seen := map[string]bool{}
	signs := true
	add := func(plugin fwk.Plugin) {
		if seen[plugin.Name()] {
			return
		}
		seen[plugin.Name()] = true
		s, ok := plugin.(fwk.SignPlugin)
		signs = signs && ok
		all = append(all, s)
	}
	for _, plugin := range p.preFilter {
		add(plugin)
	}
	for _, plugin := range p.filter {
		add(plugin)
	}
	for _, plugin := range p.preScore {
		add(plugin)
	}
	for _, plugin := range p.score {
		add(plugin)
	}
	if !signs {
		return nil
	}
	return all
}

// Sign is all of a pod that counts for the plugins: two pods that have the same signature suit the same nodes, as well
// as each other. Empty: the pod is like no other.
func (p *Profile) Sign(ctx context.Context, pod *corev1.Pod) string {
	return signed(p, pod, func(plugin fwk.SignPlugin) ([]fwk.SignFragment, *fwk.Status) { return plugin.SignPod(ctx, pod) })
}

// SignFar is Sign of pods, too, for which plugins look far: they are alike for [Farsight].
func SignFar(ctx context.Context, p *Profile, pod *corev1.Pod) string {
	return signed(p, pod, func(plugin fwk.SignPlugin) ([]fwk.SignFragment, *fwk.Status) {
		if far, ok := plugin.(Far); ok {
			return far.SignFar(ctx, pod)
		}
		return plugin.SignPod(ctx, pod)
	})
}

func signed(p *Profile, pod *corev1.Pod, part func(fwk.SignPlugin) ([]fwk.SignFragment, *fwk.Status)) string {
	if len(p.signers) == 0 {
		return ""
	}
	var signature bytes.Buffer
	values := json.NewEncoder(&signature)
	keys := make([]string, 0, len(p.signers)*2)
	for _, plugin := range p.signers {
		fragments, status := part(plugin)
		if !status.IsSuccess() {
			if status.IsError() {
				p.log.Warn("pod is not signed", "pod", klog.KObj(pod), "plugin", plugin.Name(), "error", status.AsError())
			}
			return ""
		}
		for i := range fragments {
			if slices.Contains(keys, fragments[i].Key) {
				continue // by the rules of keys it is the same
			}
			keys = append(keys, fragments[i].Key)
			signature.WriteString(fragments[i].Key)
			signature.WriteByte('=')
			if err := values.Encode(fragments[i].Value); err != nil {
				p.log.Warn("pod is not signed", "pod", klog.KObj(pod), "plugin", plugin.Name(), "error", err)
				return ""
			}
		}
	}
	return signature.String()
}
